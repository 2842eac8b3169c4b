package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// binaryVariable names the program under test. TestMain sets it if it builds one.
const binaryVariable = "SAMOVAR_BINARY"

// TestMain builds the program, unless it is given, and runs two tests at a time: each is several nodes already.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "2"); err != nil {
		panic(err) // package testing has had it for ever
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getenv(binaryVariable) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "samovar-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "samovar")
	build := exec.Command("go", "build", "-o", path, "samovar/cmd/samovar")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
		return 1
	}
	if err := os.Setenv(binaryVariable, path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
