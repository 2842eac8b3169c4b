package architecture

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// pkg is what go list says of a package.
type pkg struct {
	ImportPath, Dir, Name string
	Standard              bool
	Module                *struct{ Path, Dir string }
	GoFiles, CgoFiles     []string
	Imports               []string
	ImportMap             map[string]string
}

// module is the project with everything that it depends on.
type module struct {
	path, dir string
	packages  map[string]*pkg
}

var load = sync.OnceValues(func() (*module, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Path}}\t{{.Dir}}").Output()
	if err != nil {
		return nil, toolError(err)
	}
	m := &module{packages: map[string]*pkg{}}
	m.path, m.dir, _ = strings.Cut(strings.TrimSpace(string(root)), "\t")
	cmd := exec.Command("go", "list", "-e", "-deps", "-json=ImportPath,Dir,Name,Standard,Module,GoFiles,CgoFiles,Imports,ImportMap", "./...")
	cmd.Dir = m.dir
	text, err := cmd.Output()
	if err != nil {
		return nil, toolError(err)
	}
	for d := json.NewDecoder(strings.NewReader(string(text))); ; {
		p := &pkg{}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return m, nil
		} else if err != nil {
			return nil, err
		}
		m.packages[p.ImportPath] = p
	}
})

func toolError(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return errors.New("go list: " + string(exit.Stderr))
	}
	return err
}

func project(t *testing.T) *module {
	t.Helper()
	m, err := load()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// own lists the packages of the project in order, by their paths in the module.
func (m *module) own() []string {
	var out []string
	for path := range m.packages {
		if short, ok := m.short(path); ok {
			out = append(out, short)
		}
	}
	slices.Sort(out)
	return out
}

// short gives the path in the module of a package of the project.
func (m *module) short(path string) (string, bool) {
	if path == m.path {
		return ".", true
	}
	return strings.CutPrefix(path, m.path+"/")
}

func (m *module) get(short string) *pkg {
	if short == "." {
		return m.packages[m.path]
	}
	return m.packages[m.path+"/"+short]
}

// reach lists everything that a package imports, directly or not, with the way there: reach[x] was imported by
// reach[x][len-1], and so on back to the package. Nothing behind a package for which cut says yes is looked at.
func (m *module) reach(from string, cut func(path string) bool) map[string][]string {
	ways := map[string][]string{from: nil}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		p := m.packages[at]
		if p == nil || at != from && cut(at) {
			continue
		}
		for _, next := range p.Imports {
			if mapped, ok := p.ImportMap[next]; ok {
				next = mapped
			}
			if _, seen := ways[next]; !seen {
				ways[next] = append(slices.Clone(ways[at]), at)
				queue = append(queue, next)
			}
		}
	}
	delete(ways, from)
	return ways
}

func nothing(string) bool { return false }

// chain shows a way for a person.
func (m *module) chain(way []string, to string) string {
	var names []string
	for _, p := range append(slices.Clone(way), to) {
		if short, ok := m.short(p); ok {
			p = short
		}
		names = append(names, p)
	}
	return strings.Join(names, " -> ")
}

// within tells whether path is prefix or below it.
func within(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

// goFiles lists the files of a package that are part of the program.
func (p *pkg) goFiles() []string {
	var out []string
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
		out = append(out, filepath.Join(p.Dir, name))
	}
	return out
}
