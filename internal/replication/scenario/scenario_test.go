package scenario

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts print into them")

// TestScripts runs every script. A script is blocks of commands, each followed by a line "----" and what it prints,
// up to an empty line.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			var r *rig
			for _, block := range strings.Split(strings.TrimSpace(string(src)), "\n\n") {
				commands, _, _ := strings.Cut(block+"\n", "----\n")
				if got.Len() > 0 {
					got.WriteString("\n")
				}
				got.WriteString(commands + "----\n")
				for _, line := range strings.Split(strings.TrimSpace(commands), "\n") {
					if r, err = run(r, line); err != nil {
						t.Fatalf("%s: %v", line, err)
					}
				}
				got.WriteString(r.out.String())
				r.out.Reset()
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got.String() != string(src) {
				t.Errorf("the script prints something else (go test -run Scripts -rewrite accepts it):\n%s", got.String())
			}
		})
	}
}
