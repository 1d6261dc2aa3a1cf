package bus_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// constant is a constant of a package: its name, its declared type, and its value as written.
type constant struct{ name, typed, value string }

// constantsOf are the constants of a package, in the order of its files. A constant without type and value has those of
// the one before, as with iota.
func constantsOf(t *testing.T, dir string) (all []constant) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok || d.Tok != token.CONST {
				continue
			}
			var last constant
			for _, spec := range d.Specs {
				s := spec.(*ast.ValueSpec) //nolint:forcetypeassert // a CONST has only these
				if len(s.Values) > 0 {
					last = constant{typed: wordOf(s.Type), value: wordOf(s.Values[0])}
				}
				for _, name := range s.Names {
					all = append(all, constant{name.Name, last.typed, last.value})
				}
			}
		}
	}
	return all
}

// wordOf is an identifier, with its package; empty for other expressions.
func wordOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return wordOf(e.X) + "." + e.Sel.Name
	}
	return ""
}

// TestEnumerationsOfTheWire: each value of an enumeration in messages has one name in this package, and this package
// has no further values.
func TestEnumerationsOfTheWire(t *testing.T) {
	own, wire := constantsOf(t, "."), constantsOf(t, "../internal/wire")
	for typed, there := range map[string]string{"Policy": "Policy", "TensorTransport": "Transport", "State": "State"} {
		var want, got []string
		for _, c := range wire {
			if c.typed == there {
				want = append(want, "wire."+c.name)
			}
		}
		for _, c := range own {
			if slices.Contains(want, c.value) {
				got = append(got, c.value)
			}
			if c.typed == typed {
				t.Errorf("%s is a %s of this package alone: declare it in internal/wire", c.name, typed)
			}
		}
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s: this package has names for %v, and messages have %v", typed, got, want)
		}
	}
}

// TestOutcomesOfTheWire: an outcome has the number that it has in messages.
func TestOutcomesOfTheWire(t *testing.T) {
	named := func(dir string) (names []string) {
		for _, c := range constantsOf(t, dir) {
			if c.typed == "Outcome" {
				names = append(names, strings.TrimPrefix(strings.TrimPrefix(c.name, "Outcome"), "Past"))
			}
		}
		return names
	}
	want := append([]string{"Running"}, named("../internal/wire")...) // messages also have the outcome of a request that did not begin
	if got := append(named("."), "Refused"); !slices.Equal(got, want) {
		t.Errorf("the outcomes are %v, and those of messages %v", got, want)
	}
}
