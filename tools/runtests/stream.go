package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// event is one line of go test -json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build-output and build-fail
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// stream turns the events of one go test into lines for a person and a report.
//
//	run, output ... ──> pass | skip: forgotten, but counted │ fail: its output is kept
//	the package's own pass | fail ──> one line, then the output of what failed in it
type stream struct {
	rep      *report
	out      io.Writer
	packages map[string]*suite
	builds   map[string]*strings.Builder // output of the compiler, by import path
}

// suite is one package under test.
type suite struct {
	tests   int
	outputs map[string]*strings.Builder // by test; "": the package's own
	failed  []string                    // tests, in order
}

func newStream(rep *report, out io.Writer) *stream {
	return &stream{rep: rep, out: out, packages: map[string]*suite{}, builds: map[string]*strings.Builder{}}
}

func (s *stream) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				s.take(e)
			} else {
				fmt.Fprintf(s.out, "%s", line) // from go itself
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *stream) take(e event) {
	switch e.Action {
	case "build-output":
		if s.builds[e.ImportPath] == nil {
			s.builds[e.ImportPath] = &strings.Builder{}
		}
		s.builds[e.ImportPath].WriteString(e.Output)
		return
	case "build-fail", "start":
		return
	}
	p := s.packages[e.Package]
	if p == nil {
		p = &suite{outputs: map[string]*strings.Builder{}}
		s.packages[e.Package] = p
	}
	switch {
	case e.Action == "output":
		if p.outputs[e.Test] == nil {
			p.outputs[e.Test] = &strings.Builder{}
		}
		p.outputs[e.Test].WriteString(e.Output)
	case e.Test == "":
		if e.Action == "pass" || e.Action == "fail" || e.Action == "skip" {
			s.over(e, p)
			delete(s.packages, e.Package)
		}
	default:
		s.testOver(e, p)
	}
}

// testOver takes the end of one test.
func (s *stream) testOver(e event, p *suite) {
	text := ""
	if b := p.outputs[e.Test]; b != nil {
		text = b.String()
	}
	done := result{Package: e.Package, Name: e.Test, Seconds: e.Elapsed}
	switch e.Action {
	case "pass":
		s.rep.Passed++
	case "skip":
		done.Text = reason(text)
		s.rep.Skipped = append(s.rep.Skipped, done)
	case "fail":
		s.rep.Failed = append(s.rep.Failed, done)
		p.failed = append(p.failed, e.Test)
	default: // run, pause, cont, bench
		return
	}
	p.tests++
	if !strings.Contains(e.Test, "/") {
		s.rep.slow(done)
	}
	if e.Action != "fail" {
		delete(p.outputs, e.Test)
	}
}

// over takes the end of a package.
func (s *stream) over(e event, p *suite) {
	own := ""
	if b := p.outputs[""]; b != nil {
		own = b.String()
	}
	short := shortPath(e.Package)
	switch {
	case e.Action == "skip" || e.Action == "pass" && p.tests == 0:
		return // nothing to test
	case e.Action == "pass":
		cached := ""
		if strings.Contains(own, "(cached)") {
			cached = "  (cached)"
		}
		fmt.Fprintf(s.out, "ok    %-40s %5d tests %8.1f s%s\n", short, p.tests, e.Elapsed, cached)
		return
	}
	fmt.Fprintf(s.out, "FAIL  %-40s %5d tests %8.1f s\n", short, p.tests, e.Elapsed)
	if b := s.builds[e.FailedBuild]; b != nil {
		fmt.Fprint(s.out, b.String())
		s.rep.Failed = append(s.rep.Failed, result{Package: e.Package, Name: "(build)"})
		return
	}
	if len(p.failed) == 0 {
		// No test said that it failed: a panic, a time-out, an exit. Whatever was under way is what to look at.
		s.rep.Failed = append(s.rep.Failed, result{Package: e.Package, Name: "(the whole package)"})
		for test, b := range p.outputs {
			if test != "" {
				fmt.Fprint(s.out, shorten(b.String()))
			}
		}
	}
	for _, test := range p.failed {
		fmt.Fprint(s.out, shorten(p.outputs[test].String()))
	}
	fmt.Fprint(s.out, shorten(own))
}

// shorten leaves out the middle of a long output: the logs of a cluster, as a rule.
func shorten(text string) string {
	const ends = 150 // lines
	lines := strings.SplitAfter(text, "\n")
	out := len(lines) - 2*ends
	if out <= 0 {
		return text
	}
	return strings.Join(lines[:ends], "") + fmt.Sprintf("    ... %d lines are left out ...\n", out) + strings.Join(lines[len(lines)-ends:], "")
}

// notRun begins the text of a skip that stands for something missing on this machine.
const notRun = "NOT RUN: "

// reason finds why a test was skipped in its output.
func reason(output string) string {
	if i := strings.Index(output, notRun); i >= 0 {
		line, _, _ := strings.Cut(output[i:], "\n")
		return line
	}
	return ""
}
