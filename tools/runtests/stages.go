package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// runStages calls make for each stage. A stage that fails does not keep the others from running, for a person wants
// to see all that is wrong at once, except one that is marked with an exclamation mark.
func runStages(ctx context.Context, makeCommand string, stages []string, out io.Writer) error {
	dir, err := os.MkdirTemp("", "samovar-results-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var reports []*report
	for _, stage := range stages {
		stage, needed := strings.CutSuffix(stage, "!")
		fmt.Fprintf(out, "\n== %s\n", stage)
		begun := time.Now()
		cmd := exec.CommandContext(ctx, makeCommand, "--no-print-directory", "-s", stage)
		cmd.Env = append(os.Environ(), resultsVariable+"="+dir)
		cmd.Stdout, cmd.Stderr = out, os.Stderr
		failure := cmd.Run()
		rep, err := load(dir, stage)
		if err != nil {
			return err
		}
		rep.Seconds = time.Since(begun).Seconds()
		if failure != nil && len(rep.Failed) == 0 {
			rep.Failed = append(rep.Failed, result{Name: "make " + stage, Text: failure.Error()})
		}
		reports = append(reports, rep)
		if failure != nil && needed {
			fmt.Fprintf(out, "%s failed: the stages after it are left out\n", stage)
			break
		}
	}
	return verdict(summarize(out, reports))
}
