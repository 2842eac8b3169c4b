package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// result is one test that is worth a line.
type result struct {
	Package, Name, Text string
	Seconds             float64
}

func (r result) String() string {
	s := strings.TrimSpace(shortPath(r.Package) + " " + r.Name)
	if r.Text != "" {
		s += ": " + r.Text
	}
	return s
}

// report is what one stage did.
type report struct {
	Stage   string
	Seconds float64
	Passed  int
	Failed  []result
	Skipped []result
	Slowest []result // tests, slowest first
}

const slowest = 8

// slow keeps r if it is among the slowest.
func (rep *report) slow(r result) {
	rep.Slowest = append(rep.Slowest, r)
	slices.SortStableFunc(rep.Slowest, func(a, b result) int { return cmp.Compare(b.Seconds, a.Seconds) })
	rep.Slowest = rep.Slowest[:min(len(rep.Slowest), slowest)]
}

func (rep *report) save(dir string) error {
	text, err := json.Marshal(rep)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, rep.Stage+".json"), text, 0o600)
}

// load reads the report of a stage; a stage that is no test leaves none.
func load(dir, stage string) (*report, error) {
	text, err := os.ReadFile(filepath.Join(dir, stage+".json"))
	if os.IsNotExist(err) {
		return &report{Stage: stage}, nil
	}
	if err != nil {
		return nil, err
	}
	rep := &report{}
	if err := json.Unmarshal(text, rep); err != nil {
		return nil, fmt.Errorf("report of stage %s: %w", stage, err)
	}
	return rep, nil
}

// summarize prints what a person wants to know last, and tells whether the whole failed.
func summarize(out io.Writer, reports []*report) (failed bool) {
	var all report
	lacking := 0
	for _, rep := range reports {
		all.Passed += rep.Passed
		all.Failed = append(all.Failed, rep.Failed...)
		all.Skipped = append(all.Skipped, rep.Skipped...)
		for _, r := range rep.Slowest {
			all.slow(r)
		}
	}
	fmt.Fprintln(out)
	if len(all.Slowest) > 0 && all.Slowest[0].Seconds >= 1 {
		fmt.Fprintln(out, "slowest tests")
		for _, r := range all.Slowest {
			if r.Seconds >= 1 {
				fmt.Fprintf(out, "  %8.1f s  %s\n", r.Seconds, r)
			}
		}
	}
	if len(reports) > 1 {
		printStages(out, reports)
	}
	said := map[string]bool{} // the same test may be part of several stages
	for _, r := range all.Skipped {
		if !strings.HasPrefix(r.Text, notRun) {
			continue
		}
		lacking++
		r.Text = strings.TrimPrefix(r.Text, notRun)
		if line := r.String(); !said[line] {
			said[line] = true
			fmt.Fprintln(out, notRun+line)
		}
	}
	for _, r := range all.Failed {
		fmt.Fprintln(out, "FAILED:", r)
	}
	strict := os.Getenv("NOT_RUN") == "fail"
	if lacking > 0 && strict {
		fmt.Fprintln(out, "NOT_RUN=fail is set: what was not run counts as a failure")
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", all.Passed, len(all.Failed), len(all.Skipped))
	return len(all.Failed) > 0 || lacking > 0 && strict
}

func printStages(out io.Writer, reports []*report) {
	fmt.Fprintln(out, "stages")
	total := 0.0
	for _, rep := range reports {
		word := "ok"
		if len(rep.Failed) > 0 {
			word = "FAILED"
		}
		total += rep.Seconds
		fmt.Fprintf(out, "  %8.1f s  %-12s %s\n", rep.Seconds, rep.Stage, word)
	}
	fmt.Fprintf(out, "  %8.1f s  in all\n", total)
}

// shortPath takes the module off an import path.
func shortPath(path string) string {
	_, rest, found := strings.Cut(path, "/")
	if !found {
		return path
	}
	return rest
}
