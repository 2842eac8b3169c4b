// Runtests runs the tests of this repository and says in the end what happened: which stage took how long, what
// failed, what was slow, and what could not run here and why. The Makefile calls it; it knows go and make, and
// nothing of what is tested.
//
//	runtests stages build! lint unit ...        make STAGE, one after the other; ! ends the run if it fails
//	runtests test -stage unit [-exclude p,q] ./... -race        go test -json, in few lines
//	runtests fuzz -stage fuzz-smoke -time 3s ./...              each fuzz target for a moment
//
// A test that cannot run here skips with the text "NOT RUN: reason". With NOT_RUN=fail in the environment that is a
// failure. Stages leave their report in the folder that SAMOVAR_RESULTS names, for the summary of all.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// resultsVariable names the folder for the reports of stages.
const resultsVariable = "SAMOVAR_RESULTS"

func main() {
	// An interrupt reaches the children too, since they are in the same group: they end, then so do we.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, errFailed) { // that was said
			fmt.Fprintln(os.Stderr, "runtests:", err)
		}
		os.Exit(1)
	}
}

var errFailed = errors.New("not everything passed")

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("use: runtests stages, test or fuzz")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	stage := flags.String("stage", args[0], "name of this stage in summaries")
	exclude := flags.String("exclude", "", "packages to leave out: paths in the module, by commas; those below go too")
	length := flags.Duration("time", 3*time.Second, "how long each fuzz target runs")
	makeCommand := flags.String("make", "make", "the make to call")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	begun := time.Now()
	rep := &report{Stage: *stage}
	switch args[0] {
	case "stages":
		return runStages(ctx, *makeCommand, flags.Args(), out)
	case "test":
		patterns, rest := split(flags.Args())
		if err := testPackages(ctx, rep, patterns, *exclude, rest, out); err != nil {
			return err
		}
	case "fuzz":
		if err := fuzz(ctx, rep, flags.Args(), *length, out); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%q is none of stages, test, fuzz", args[0])
	}
	rep.Seconds = time.Since(begun).Seconds()
	if dir := os.Getenv(resultsVariable); dir != "" {
		if err := rep.save(dir); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %d tests in %.1f s\n", rep.Stage, rep.Passed+len(rep.Failed)+len(rep.Skipped), rep.Seconds)
		return verdict(len(rep.Failed) > 0)
	}
	return verdict(summarize(out, []*report{rep}))
}

func verdict(failed bool) error {
	if failed {
		return errFailed
	}
	return nil
}

// split separates package patterns from the flags for go test that follow them.
func split(args []string) (patterns, rest []string) {
	n := slices.IndexFunc(args, func(s string) bool { return strings.HasPrefix(s, "-") })
	if n < 0 {
		n = len(args)
	}
	return args[:n], args[n:]
}

// testPackages runs go test on what the patterns match.
func testPackages(ctx context.Context, rep *report, patterns []string, exclude string, args []string, out io.Writer) error {
	packages, err := list(ctx, rep, patterns, exclude)
	if err != nil || len(packages) == 0 {
		return err
	}
	// Flags of go come before the packages, those of the tests behind them: -args separates.
	own, test := args, []string(nil)
	if n := slices.Index(args, "-args"); n >= 0 {
		own, test = args[:n], args[n:]
	}
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-json"}, own, packages, test)...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := newStream(rep, out).read(pipe); err != nil {
		return errors.Join(err, cmd.Wait())
	}
	if err := cmd.Wait(); err != nil && len(rep.Failed) == 0 {
		rep.Failed = append(rep.Failed, result{Name: "go test", Text: err.Error()})
	}
	return nil
}

// list names the packages that the patterns match. A pattern for a folder that does not exist is noted as not run:
// the rest of the tests is worth running.
func list(ctx context.Context, rep *report, patterns []string, exclude string) ([]string, error) {
	var known []string
	for _, p := range patterns {
		if _, err := os.Stat(filepath.Clean(strings.TrimSuffix(p, "..."))); strings.HasPrefix(p, "./") && err != nil {
			rep.Skipped = append(rep.Skipped, result{Name: p, Text: notRun + "there is no such package"})
			continue
		}
		known = append(known, p)
	}
	if len(known) == 0 {
		return nil, nil
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-f", "{{.Module.Path}} {{.ImportPath}}"}, known...)...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", strings.Join(known, " "), err)
	}
	var packages []string
	for line := range strings.Lines(string(text)) {
		module, path, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !excluded(strings.TrimPrefix(path, module+"/"), exclude) {
			packages = append(packages, path)
		}
	}
	return packages, nil
}

func excluded(path, exclude string) bool {
	for e := range strings.SplitSeq(exclude, ",") {
		if e != "" && (path == e || strings.HasPrefix(path, e+"/")) {
			return true
		}
	}
	return false
}
