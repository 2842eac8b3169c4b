package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// excusedGlobals says why a package-level variable may change.
func excusedGlobals() map[string]string {
	return map[string]string{
		"internal/nbd.messagePool": "a sync.Pool: nobody can see its state",
		"cmd/samovar.version":      "the linker sets it",
	}
}

// A package-level variable is a constant that the language has no form for: an error, a table, an embedded file.
func TestNoMutableGlobals(t *testing.T) {
	m := project(t)
	excused := excusedGlobals()
	for _, short := range m.own() {
		p := m.get(short)
		set := token.NewFileSet()
		var trees []*ast.File
		for _, file := range p.goFiles() {
			tree, err := parser.ParseFile(set, file, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Error(err)
				continue
			}
			trees = append(trees, tree)
		}
		info := resolve(p.ImportPath, set, trees)
		at := func(n ast.Node) string {
			pos := set.Position(n.Pos())
			pos.Filename = short + "/" + filepath.Base(pos.Filename)
			return pos.String()
		}
		globals := map[types.Object]bool{}
		for _, tree := range trees {
			for _, d := range tree.Decls {
				if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
					for _, spec := range g.Specs {
						checkGlobal(t, info, g, spec.(*ast.ValueSpec), short, excused, globals, at)
					}
				}
			}
		}
		for _, tree := range trees {
			ast.Inspect(tree, func(n ast.Node) bool {
				for _, target := range changed(n) {
					if id := root(target); id != nil && globals[info.Uses[id]] {
						t.Errorf("%s: the package-level variable %s is changed: give the state an owner", at(n), id.Name)
					}
				}
				return true
			})
		}
	}
	for name := range excused {
		t.Errorf("excusedGlobals names %s, which is gone", name)
	}
}

func checkGlobal(t *testing.T, info *types.Info, g *ast.GenDecl, spec *ast.ValueSpec, short string,
	excused map[string]string, globals map[types.Object]bool, at func(ast.Node) string) {
	embedded := strings.Contains(g.Doc.Text()+directives(g.Doc)+directives(spec.Doc), "go:embed")
	for i, name := range spec.Names {
		if name.Name == "_" {
			continue
		}
		full := short + "." + name.Name
		if _, ok := excused[full]; ok {
			delete(excused, full)
			continue
		}
		globals[info.Defs[name]] = true
		var value ast.Expr
		if i < len(spec.Values) {
			value = spec.Values[i]
		}
		if !embedded && !constant(name.Name, value) {
			t.Errorf("%s: the package-level variable %s is no error, table or embedded file: give the state an owner and pass it in",
				at(name), name.Name)
		}
	}
}

// directives is the text of a comment with its directives, which Text leaves out.
func directives(g *ast.CommentGroup) string {
	text := ""
	if g != nil {
		for _, c := range g.List {
			text += c.Text + "\n"
		}
	}
	return text
}

// constant tells whether a variable with this name and value stands for something that does not change.
func constant(name string, value ast.Expr) bool {
	if strings.HasPrefix(name, "err") || strings.HasPrefix(name, "Err") {
		return true
	}
	switch v := value.(type) {
	case *ast.CompositeLit: // a table
		switch v.Type.(type) {
		case *ast.ArrayType, *ast.MapType:
			return true
		}
	case *ast.CallExpr: // a table or value that is computed
		if f, ok := v.Fun.(*ast.SelectorExpr); ok {
			if x, ok := f.X.(*ast.Ident); ok {
				return slices.Contains([]string{
					"crc32.MakeTable", "regexp.MustCompile", "time.Date", "strings.NewReplacer", "template.Must", "netip.MustParsePrefix",
				}, x.Name+"."+f.Sel.Name)
			}
		}
	}
	return false
}

// changed lists what a statement or expression may change.
func changed(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			return n.Lhs
		}
	case *ast.IncDecStmt:
		return []ast.Expr{n.X}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "delete" || f.Name == "clear") && len(n.Args) > 0 {
			return n.Args[:1]
		}
	}
	return nil
}

// root is the variable that an expression like v.a[i].b is part of.
func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// resolve finds out which name means what within a package. What other packages declare stays unknown, so errors are
// expected and dropped.
func resolve(path string, set *token.FileSet, trees []*ast.File) *types.Info {
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Error: func(error) {}, Importer: emptyImporter{}}
	_, _ = config.Check(path, set, trees, info)
	return info
}

// emptyImporter knows no package.
type emptyImporter struct{}

func (emptyImporter) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, filepath.Base(path))
	p.MarkComplete()
	return p, nil
}
