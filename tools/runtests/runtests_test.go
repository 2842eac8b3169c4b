package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

const events = `{"Action":"start","Package":"m/internal/a"}
{"Action":"run","Package":"m/internal/a","Test":"TestGood"}
{"Action":"output","Package":"m/internal/a","Test":"TestGood","Output":"chatter\n"}
{"Action":"pass","Package":"m/internal/a","Test":"TestGood","Elapsed":2}
{"Action":"run","Package":"m/internal/a","Test":"TestBad"}
{"Action":"output","Package":"m/internal/a","Test":"TestBad","Output":"    a_test.go:7: it broke\n"}
{"Action":"fail","Package":"m/internal/a","Test":"TestBad","Elapsed":0.1}
{"Action":"output","Package":"m/internal/a","Test":"TestFio","Output":"    a_test.go:9: NOT RUN: fio is not installed\n"}
{"Action":"skip","Package":"m/internal/a","Test":"TestFio","Elapsed":0}
{"Action":"skip","Package":"m/internal/a","Test":"TestLong","Elapsed":0}
{"Action":"output","Package":"m/internal/a","Output":"FAIL\n"}
{"Action":"fail","Package":"m/internal/a","Elapsed":2.2}
{"Action":"run","Package":"m/internal/b","Test":"TestHang"}
{"Action":"output","Package":"m/internal/b","Test":"TestHang","Output":"goroutine 7 [running]\n"}
{"Action":"output","Package":"m/internal/b","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"m/internal/b","Elapsed":600}
{"ImportPath":"m/internal/c","Action":"build-output","Output":"c.go:3:1: syntax error\n"}
{"ImportPath":"m/internal/c","Action":"build-fail"}
{"Action":"fail","Package":"m/internal/c","Elapsed":0,"FailedBuild":"m/internal/c"}
{"Action":"skip","Package":"m/internal/d","Elapsed":0}
not json
`

func TestStream(t *testing.T) {
	var out bytes.Buffer
	rep := &report{Stage: "unit"}
	if err := newStream(rep, &out).read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"FAIL  internal/a", "it broke", "test timed out", "goroutine 7", "syntax error", "not json"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
	for _, unwanted := range []string{"chatter", "internal/d"} {
		if strings.Contains(out.String(), unwanted) {
			t.Errorf("%q should not be in:\n%s", unwanted, out.String())
		}
	}
	if rep.Passed != 1 || len(rep.Failed) != 3 || len(rep.Skipped) != 2 {
		t.Fatalf("%+v", rep)
	}

	dir := t.TempDir()
	if err := rep.save(dir); err != nil {
		t.Fatal(err)
	}
	again, err := load(dir, "unit")
	if err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if !summarize(&out, []*report{again, {Stage: "lint"}}) {
		t.Error("a failure is no failure")
	}
	for _, want := range []string{
		"2.0 s  internal/a TestGood\n", "NOT RUN: internal/a TestFio: fio is not installed\n",
		"FAILED: internal/a TestBad\n", "FAILED: internal/c (build)\n", "unit         FAILED", "lint         ok",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
	if !strings.HasSuffix(out.String(), "\n1 passed, 3 failed, 2 skipped\n") {
		t.Errorf("the last line is wrong:\n%s", out.String())
	}
}

func TestNotRunFailsOnlyWhenAsked(t *testing.T) {
	rep := &report{Passed: 1, Skipped: []result{{Name: "TestFio", Text: notRun + "no fio"}, {Name: "TestLong"}}}
	for _, c := range []struct {
		value string
		fails bool
	}{{"", false}, {"fail", true}} {
		t.Setenv("NOT_RUN", c.value)
		if summarize(&bytes.Buffer{}, []*report{rep}) != c.fails {
			t.Errorf("NOT_RUN=%q: fails is not %v", c.value, c.fails)
		}
	}
	rep.Skipped = rep.Skipped[1:]
	if summarize(&bytes.Buffer{}, []*report{rep}) {
		t.Error("a skip for another reason counts as not run")
	}
}

func TestList(t *testing.T) {
	rep := &report{}
	packages, err := list(context.Background(), rep, []string{"./no/such/...", "./..."}, "elsewhere")
	if err != nil || len(packages) != 1 || !strings.HasSuffix(packages[0], "/tools/runtests") {
		t.Errorf("%v, %v", packages, err)
	}
	if len(rep.Skipped) != 1 || !strings.HasPrefix(rep.Skipped[0].Text, notRun) {
		t.Errorf("%+v", rep.Skipped)
	}
	if packages, _ := list(context.Background(), rep, []string{"./..."}, "x,tools"); len(packages) != 0 {
		t.Errorf("not excluded: %v", packages)
	}
}

func TestBadCommands(t *testing.T) {
	for _, args := range [][]string{nil, {"dance"}, {"test", "-stage"}} {
		if run(context.Background(), args, &bytes.Buffer{}) == nil {
			t.Errorf("%v passed", args)
		}
	}
}

func TestLongOutputIsShortened(t *testing.T) {
	if text := strings.Repeat("x\n", 200); shorten(text) != text {
		t.Error("a short output is changed")
	}
	text := shorten(strings.Repeat("x\n", 1000) + "the end\n")
	if strings.Count(text, "\n") != 300 || !strings.HasSuffix(text, "the end\n") || !strings.Contains(text, " 702 lines are left out") {
		t.Error(text)
	}
}
