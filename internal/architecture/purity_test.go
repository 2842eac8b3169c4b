package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// impure packages of the standard library may not be reached by pure packages, not even through others.
func impure() map[string]string {
	return map[string]string{
		"net": "sockets", "os": "files", "sync": "goroutines", "fmt": "it reaches os", "log": "output",
		"context": "goroutines and clocks", "syscall": "the system", "math/rand": "randomness is injected",
		"math/rand/v2": "randomness is injected", "crypto/rand": "randomness is injected", "io": "input and output",
	}
}

// allowedTime is what pure packages may use of the package time: a length of time is a number.
func allowedTime() []string {
	return []string{"Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}
}

func isPure(short string) bool {
	return slices.ContainsFunc(pure(), func(prefix string) bool { return within(short, prefix) })
}

func TestPurePackagesReachNothing(t *testing.T) {
	m := project(t)
	for _, short := range m.own() {
		if !isPure(short) {
			continue
		}
		// What time itself needs is not this package's doing: what it uses of time is checked below.
		ways := m.reach(m.get(short).ImportPath, func(path string) bool { return path == "time" })
		for path, way := range ways {
			if why, bad := impure()[path]; bad {
				t.Errorf("%s\n\tpure packages reach no %s: %s", m.chain(way, path), path, why)
			}
			if p := m.packages[path]; p != nil && !p.Standard {
				if target, ours := m.short(path); !ours || !isPure(target) {
					t.Errorf("%s\n\ta pure package imports pure ones only", m.chain(way, path))
				}
			}
		}
	}
}

func TestPurePackagesDoNothing(t *testing.T) {
	m := project(t)
	for _, short := range m.own() {
		if !isPure(short) {
			continue
		}
		for _, file := range m.get(short).goFiles() {
			set := token.NewFileSet()
			tree, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Error(err)
				continue
			}
			for _, spec := range tree.Imports {
				if spec.Path.Value == `"time"` && spec.Name != nil {
					t.Errorf("%s: the package time has its own name in pure packages", set.Position(spec.Pos()))
				}
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				if what := act(n); what != "" {
					t.Errorf("%s: %s\n\tpure packages have no goroutine, channel or clock", set.Position(n.Pos()), what)
				}
				return true
			})
		}
	}
}

// act names what a pure package must not do.
func act(n ast.Node) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "a goroutine"
	case *ast.ChanType, *ast.SendStmt, *ast.SelectStmt:
		return "a channel"
	case *ast.SelectorExpr:
		if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && !slices.Contains(allowedTime(), n.Sel.Name) {
			return "time." + n.Sel.Name + " (of time, only " + strings.Join(allowedTime(), ", ") + ")"
		}
	}
	return ""
}
