package layers

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestErrorsAreDistinguished: an error has an exported name for callers that do something
// about it. One that they only print needs none.
func TestErrorsAreDistinguished(t *testing.T) {
	report(t, checkErrors(exportedErrors(readProgram(t), forTests), distinguished(t, moduleRoot(t)), namesOf(errorPromises)))
}

// checkErrors compares the exported errors with those that a caller distinguishes, or may.
func checkErrors(declared []string, told map[string]bool, may []string) (broken []string) {
	for _, name := range declared {
		if !told[name] && !slices.Contains(may, name) {
			broken = append(broken, fmt.Sprintf("no caller distinguishes %s from other errors: give it no exported name, or name the program that does in internal/layers/promises_test.go", name))
		}
	}
	for _, name := range may {
		if told[name] || !slices.Contains(declared, name) {
			broken = append(broken, fmt.Sprintf("%s is distinguished or gone: take it out of errorPromises in internal/layers/promises_test.go", name))
		}
	}
	return broken
}

// exportedErrors are the variables and types of the module that are errors.
func exportedErrors(p *program, except []string) (names []string) {
	failure := types.Universe.Lookup("error").Type().Underlying().(*types.Interface)
	for _, c := range p.packages {
		if slices.ContainsFunc(except, func(part string) bool { return within(c.path, part) }) {
			continue
		}
		for _, name := range c.types.Scope().Names() {
			obj := c.types.Scope().Lookup(name)
			switch obj.(type) {
			case *types.Var, *types.TypeName:
			default:
				continue
			}
			typed := obj.Type()
			if obj.Exported() && (types.Implements(typed, failure) || types.Implements(types.NewPointer(typed), failure)) {
				names = append(names, c.path+"."+name)
			}
		}
	}
	return names
}

// distinguished are the names, with their packages, that files of the repository compare errors
// with. A test counts for other packages than its own.
func distinguished(t *testing.T, root string) map[string]bool {
	t.Helper()
	told := make(map[string]bool)
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != root && skipDir(name, entry.Name()):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(name) != ".go":
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		tellApart(f, filepath.ToSlash(rel), strings.HasSuffix(name, "_test.go"), told)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return told
}

// tellApart adds the names that a file compares errors with: those in calls of errors.Is, As and
// AsType, in comparisons, cases, assertions and literals of tables, and types of variables. A
// test may mention them anywhere.
func tellApart(f *ast.File, dir string, test bool, told map[string]bool) {
	imported := make(map[string]string)
	for _, spec := range f.Imports {
		rel, ok := local(strings.Trim(spec.Path.Value, `"`))
		if !ok {
			continue
		}
		imported[path.Base(rel)] = rel
		if spec.Name != nil {
			imported[spec.Name.Name] = rel
		}
	}
	mention := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && imported[x.Name] != "" {
					if rel := imported[x.Name]; !test || rel != dir {
						told[rel+"."+n.Sel.Name] = true
					}
					return false
				}
			case *ast.Ident:
				if !test {
					told[dir+"."+n.Name] = true
				}
			}
			return true
		})
	}
	if test {
		mention(f)
		return
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if isErrors(n.Fun) {
				mention(n)
			}
		case *ast.CaseClause:
			for _, e := range n.List {
				mention(e)
			}
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				mention(n)
			}
		case *ast.TypeAssertExpr:
			if n.Type != nil {
				mention(n.Type)
			}
		case *ast.ValueSpec:
			if n.Type != nil {
				mention(n.Type)
			}
		case *ast.CompositeLit:
			switch n.Type.(type) {
			case *ast.ArrayType, *ast.MapType:
				for _, e := range n.Elts {
					mention(e)
				}
			}
		}
		return true
	})
}

// isErrors is about errors.Is, As and AsType[T].
func isErrors(fun ast.Expr) bool {
	if i, ok := fun.(*ast.IndexExpr); ok {
		fun = i.X
	}
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == "errors" && slices.Contains([]string{"Is", "As", "AsType"}, sel.Sel.Name)
}

func TestErrorsCanBeTheSame(t *testing.T) {
	const src = `package p

import "errors"

var ErrOne, ErrTwo, ErrThree, errFour = errors.New("1"), errors.New("2"), errors.New("3"), errors.New("4")

type Five struct{}

func (*Five) Error() string { return "" }

type Six struct{}

func (Six) Error() string { return "" }

func f(err error) error {
	if _, ok := errors.AsType[*Five](err); ok || errors.Is(err, ErrOne) || err == errFour {
		return ErrTwo
	}
	return nil
}
`
	p := programOf(t, src)
	declared := exportedErrors(p, nil)
	if want := []string{"a/p.ErrOne", "a/p.ErrThree", "a/p.ErrTwo", "a/p.Five", "a/p.Six"}; !slices.Equal(declared, want) {
		t.Fatalf("got %q, want %q", declared, want)
	}
	told := make(map[string]bool)
	tellApart(p.packages[0].files[0], "a/p", false, told)
	for _, dir := range []string{"a/p", "b"} {
		f, err := parser.ParseFile(token.NewFileSet(), "x_test.go", `package p_test
import "`+module+`/a/p"
var table = []any{struct{ err error }{p.Err`+map[string]string{"a/p": "Two", "b": "Three"}[dir]+`}}`, 0)
		if err != nil {
			t.Fatal(err)
		}
		tellApart(f, dir, true, told)
	}
	var got []string
	for _, b := range checkErrors(declared, told, []string{"a/p.Five", "a/p.Six"}) {
		got = append(got, b[:min(len(b), 40)])
	}
	want := []string{"no caller distinguishes a/p.ErrTwo from ", "a/p.Five is distinguished or gone: take "}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
