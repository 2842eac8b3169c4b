package architecture

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// rowOf finds the row of a package, and the prefix that put it there.
func rowOf(rows []row, short string) (r *row, prefix string) {
	for i := range rows {
		for _, p := range rows[i].packages {
			if within(short, p) && len(p) > len(prefix) {
				r, prefix = &rows[i], p
			}
		}
	}
	return r, prefix
}

func TestTableIsInOrder(t *testing.T) {
	above := []string{}
	for _, r := range table() {
		for _, name := range r.sees {
			if !slices.Contains(above, name) {
				t.Errorf("row %q sees %q, which is no row above it", r.name, name)
			}
		}
		above = append(above, r.name)
	}
	for module, rows := range outside() {
		for _, name := range rows {
			if !slices.Contains(above, name) {
				t.Errorf("module %s is allowed in %q, which is no row", module, name)
			}
		}
	}
}

func TestEveryPackageHasARow(t *testing.T) {
	m, rows := project(t), table()
	for _, short := range m.own() {
		if r, _ := rowOf(rows, short); r == nil {
			t.Errorf("%s is in no row: add it to the table in internal/architecture/table_test.go, and to docs/architecture.md", short)
		}
	}
}

func TestLayers(t *testing.T) {
	m, rows := project(t), table()
	for _, short := range m.own() {
		from, prefix := rowOf(rows, short)
		if from == nil {
			continue
		}
		ways := m.reach(m.get(short).ImportPath, nothing)
		for _, path := range slices.Sorted(maps.Keys(ways)) {
			target, ok := m.short(path)
			if !ok {
				continue
			}
			way := ways[path]
			to, other := rowOf(rows, target)
			before, _ := m.short(way[len(way)-1])
			last, _ := rowOf(rows, before)
			switch {
			case to == nil || last == to && to != from: // the step into that row is what matters
			case to == from && from.apart && other != prefix:
				t.Errorf("%s\n\tpackages of the row %q never import each other", m.chain(way, path), from.name)
			case to != from && !slices.Contains(from.sees, to.name):
				t.Errorf("%s\n\t%q may import %s; it must not know %s", m.chain(way, path), from.name, names(from.sees), from.not)
			}
		}
	}
}

func names(rows []string) string {
	if len(rows) == 0 {
		return "only its own row"
	}
	return strings.Join(rows, ", ")
}

func TestBans(t *testing.T) {
	m := project(t)
	for _, short := range m.own() {
		for _, b := range bans() {
			if !within(short, b.from) {
				continue
			}
			for path, way := range m.reach(m.get(short).ImportPath, nothing) {
				target, ok := m.short(path)
				if !ok {
					target = path
				}
				if within(target, b.to) {
					t.Errorf("%s\n\t%s", m.chain(way, path), b.why)
				}
			}
		}
	}
}

// Modules of others are a decision: each has its place.
func TestOtherModules(t *testing.T) {
	m, rows := project(t), table()
	for _, short := range m.own() {
		from, _ := rowOf(rows, short)
		if from == nil {
			continue
		}
		for _, path := range m.get(short).Imports {
			p := m.packages[path]
			if _, ours := m.short(path); ours || p == nil || p.Standard || path == "C" {
				continue
			}
			allowed, known := prefixOf(outside(), path)
			if !known {
				t.Errorf("%s imports %s: add that module to outside in internal/architecture/table_test.go, with the rows that need it", short, path)
			} else if !slices.Contains(allowed, from.name) {
				t.Errorf("%s imports %s, which only %s may", short, path, strings.Join(allowed, ", "))
			}
		}
		for path, way := range m.reach(m.get(short).ImportPath, nothing) {
			allowed, is := prefixOf(sealed(), path)
			if _, inside := prefixOf(sealed(), way[len(way)-1]); is && !inside && !slices.Contains(allowed, from.name) {
				t.Errorf("%s\n\tonly %s may reach it", m.chain(way, path), strings.Join(allowed, ", "))
			}
		}
	}
}

func prefixOf(table map[string][]string, path string) ([]string, bool) {
	for prefix, rows := range table {
		if within(path, prefix) {
			return rows, true
		}
	}
	return nil, false
}

// The program carries no test code.
func TestProgramHasNoTestCode(t *testing.T) {
	m, rows := project(t), table()
	for _, short := range m.own() {
		if r, _ := rowOf(rows, short); r == nil || r.name == "test support" {
			continue
		}
		for path, way := range m.reach(m.get(short).ImportPath, nothing) {
			if path == "testing" || path == "net/http/httptest" {
				t.Errorf("%s\n\tthe program has no use for it", m.chain(way, path))
			}
		}
	}
}
