package architecture

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// source is one parsed file.
type source struct {
	name  string // path in the module
	text  []byte
	tree  *ast.File
	set   *token.FileSet
	tests bool
}

// files calls f for every file of the project with the given ending.
func files(t *testing.T, ending string, f func(name string, text []byte)) {
	t.Helper()
	dir := project(t).dir
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != dir && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "dist") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ending) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		short, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f(filepath.ToSlash(short), text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func sources(t *testing.T, f func(s source)) {
	t.Helper()
	files(t, ".go", func(name string, text []byte) {
		s := source{name: name, text: text, set: token.NewFileSet(), tests: strings.HasSuffix(name, "_test.go")}
		tree, err := parser.ParseFile(s.set, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		s.tree = tree
		f(s)
	})
}

// longFiles says why a file has more lines than maxLines.
func longFiles() map[string]string {
	return map[string]string{}
}

const maxLines = 600

func TestFilesAreShort(t *testing.T) {
	reasons := longFiles()
	files(t, ".go", func(name string, text []byte) {
		lines := bytes.Count(text, []byte("\n"))
		reason, excused := reasons[name]
		switch {
		case lines > maxLines && (!excused || reason == ""):
			t.Errorf("%s has %d lines: a file has at most %d, or a reason in longFiles of internal/architecture/source_test.go", name, lines, maxLines)
		case lines <= maxLines && excused:
			t.Errorf("%s has %d lines: its entry in longFiles can go", name, lines)
		}
		delete(reasons, name)
	})
	for name := range reasons {
		t.Errorf("longFiles names %s, which is gone", name)
	}
}

func TestNoInit(t *testing.T) {
	sources(t, func(s source) {
		for _, d := range s.tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s: no init: what happens at the start stands in main, in order", s.set.Position(f.Pos()))
			}
		}
	})
}

var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX|HA` + `CK)\b`)

func TestNothingIsLeftUnfinished(t *testing.T) {
	sources(t, func(s source) {
		for _, group := range s.tree.Comments {
			for _, c := range group.List {
				if word := unfinished.FindString(c.Text); word != "" {
					t.Errorf("%s: %s: do it, or file an issue; docs/limits.md is for what users should know", s.set.Position(c.Pos()), word)
				}
			}
		}
	})
}

// A package is a noun of the domain.
func TestPackageNames(t *testing.T) {
	empty := []string{"util", "utils", "common", "helper", "helpers", "misc", "base", "types", "shared", "lib", "core", "tools"}
	m := project(t)
	for _, short := range m.own() {
		if name := m.get(short).Name; slices.Contains(empty, name) || slices.Contains(empty, filepath.Base(short)) {
			t.Errorf("%s: %q says nothing of what is in it", short, name)
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	comments := map[string]int{}
	sources(t, func(s source) {
		if s.tests {
			return
		}
		dir := filepath.Dir(s.name)
		comments[dir] += 0
		if doc := s.tree.Doc; doc != nil {
			comments[dir]++
			if name := s.tree.Name.Name; name != "main" && !strings.HasPrefix(doc.Text(), "Package "+name+" ") {
				t.Errorf("%s: the comment should begin with %q", s.name, "Package "+name)
			}
		}
	})
	for dir, n := range comments {
		if n != 1 {
			t.Errorf("%s has %d package comments: one says its job, what it must not know, and draws its format or states", dir, n)
		}
	}
}
