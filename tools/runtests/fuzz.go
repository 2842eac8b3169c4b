package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

var fuzzFunction = regexp.MustCompile(`(?m)^func (Fuzz\w*)\(`)

// fuzz runs every fuzz target for a moment: enough to see that it builds, that its seeds pass, and that nothing
// falls over at once.
func fuzz(ctx context.Context, rep *report, patterns []string, length time.Duration, out io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-f", "{{.ImportPath}}\t{{.Dir}}"}, patterns...)...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		path, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		targets, err := fuzzTargets(dir)
		if err != nil {
			return err
		}
		for _, target := range targets {
			fuzzOne(ctx, rep, path, target, length, out)
		}
	}
	return nil
}

func fuzzTargets(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	var targets []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, m := range fuzzFunction.FindAllSubmatch(text, -1) {
			targets = append(targets, string(m[1]))
		}
	}
	return targets, nil
}

func fuzzOne(ctx context.Context, rep *report, path, target string, length time.Duration, out io.Writer) {
	begun := time.Now()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+target+"$", "-fuzztime", length.String(), path)
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	done := result{Package: path, Name: target, Seconds: time.Since(begun).Seconds()}
	if err != nil {
		rep.Failed = append(rep.Failed, done)
		fmt.Fprintf(out, "FAIL  %-40s %s\n%s", shortPath(path), target, said.String())
		return
	}
	rep.Passed++
	fmt.Fprintf(out, "ok    %-40s %-24s %5.1f s\n", shortPath(path), target, done.Seconds)
}
