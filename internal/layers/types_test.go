package layers

import (
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestTypesAreSmall(t *testing.T) {
	figures := touching(readProgram(t))
	report(t, checkFigures(figures, mostTouching, typesAbove, "functions touch the fields of %s: let types of their own have a part of the fields"))
	for _, name := range largest(figures, 12) {
		t.Logf("%4d functions touch the fields of %s", figures[name], name)
	}
}

func TestMutexesAreLockedByTheirTypes(t *testing.T) {
	report(t, checkFigures(strangeLocks(readProgram(t)), 0, locksAbove, "calls lock a mutex of %s outside its methods: give the type a method that does it"))
}

// touching counts for each struct the functions and methods that select one of its fields.
func touching(p *program) map[string]int {
	figures := make(map[string]int)
	for _, c := range p.packages {
		owner := owners(c.types)
		c.functions(func(fn *ast.FuncDecl, _ string) {
			touched := make(map[string]bool)
			ast.Inspect(fn, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok {
					if field := fieldOf(c, sel); field != nil && owner[field] != "" {
						touched[c.path+"."+strings.TrimSuffix(owner[field], ".")] = true
					}
				}
				return true
			})
			for name := range touched {
				figures[name]++
			}
		})
	}
	return figures
}

// fieldOf is the field that a selector selects, or nil.
func fieldOf(c *checked, sel *ast.SelectorExpr) *types.Var {
	if s := c.info.Selections[sel]; s != nil && s.Kind() == types.FieldVal {
		return s.Obj().(*types.Var).Origin()
	}
	return nil
}

// strangeLocks counts for each struct the calls that lock a mutex among its fields and stand
// in no method of it.
func strangeLocks(p *program) map[string]int {
	figures := make(map[string]int)
	for _, c := range p.packages {
		owner := owners(c.types)
		c.functions(func(fn *ast.FuncDecl, receiver string) {
			ast.Inspect(fn, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if of := lockedBy(c, call, owner); of != "" && of != receiver+"." {
						figures[c.path+"."+strings.TrimSuffix(of, ".")]++
					}
				}
				return true
			})
		})
	}
	return figures
}

// lockedBy is the owner of the field whose mutex a call locks, or empty.
func lockedBy(c *checked, call *ast.CallExpr, owner map[types.Object]string) string {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Lock", "TryLock", "RLock", "TryRLock"}, method.Sel.Name) {
		return ""
	}
	obj, ok := c.info.Uses[method.Sel].(*types.Func)
	if !ok || obj.Pkg() == nil || obj.Pkg().Path() != "sync" || types.IsInterface(obj.Signature().Recv().Type()) {
		return ""
	}
	if s := c.info.Selections[method]; len(s.Index()) > 1 { // of an embedded mutex
		at := s.Recv()
		if ptr, ok := at.(*types.Pointer); ok {
			at = ptr.Elem()
		}
		if u, ok := at.Underlying().(*types.Struct); ok {
			return owner[u.Field(s.Index()[0]).Origin()]
		}
	}
	if sel, ok := ast.Unparen(method.X).(*ast.SelectorExpr); ok {
		if field := fieldOf(c, sel); field != nil {
			return owner[field]
		}
	}
	return ""
}

// checkFigures compares figures with what they may be at most: a common bound, or what a table
// has for a name. A figure of the table that is more than a tenth too high is wrong as well: the
// table follows what gets smaller, and not each line.
func checkFigures(figures map[string]int, most int, above map[string]int, what string) (broken []string) {
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		if bound := max(most, above[name]); figures[name] > bound {
			broken = append(broken, fmt.Sprintf("%d "+what+"; at most %d are allowed, by the tables of internal/layers/figures_test.go", figures[name], name, bound))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(above)) {
		if is := figures[name]; is <= most {
			broken = append(broken, fmt.Sprintf("%s has %d, which anything may have: take its line out of internal/layers/figures_test.go", name, is))
		} else if is < above[name]-above[name]/10 {
			broken = append(broken, fmt.Sprintf("%s has %d, fewer than %d: write that into internal/layers/figures_test.go", name, is, above[name]))
		}
	}
	return broken
}

// largest are the names of the largest figures.
func largest(figures map[string]int, n int) []string {
	names := slices.SortedFunc(maps.Keys(figures), func(a, b string) int {
		if d := figures[b] - figures[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return names[:min(n, len(names))]
}

func TestTypesCanBeLarge(t *testing.T) {
	const src = `package p

import "sync"

type box struct {
	mu sync.Mutex
	n  int
	in inner
}

type inner struct {
	sync.RWMutex
	m int
}

func (b *box) add()         { b.mu.Lock(); b.n++; b.n++; b.mu.Unlock() }
func (b *box) look()        { b.in.RLock(); b.in.m++ }
func free(b *box)           { func() { b.mu.Lock() }(); b.mu.TryLock() }
func (i inner) more(b *box) { i.RLock(); var mu sync.Mutex; mu.Lock(); _ = b }
func lone() box             { return box{n: 1} }
`
	p := programOf(t, src)
	for _, tt := range []struct {
		what string
		got  map[string]int
		want map[string]int
	}{
		{"functions that touch fields", touching(p), map[string]int{"a/p.box": 3, "a/p.inner": 1}},
		{"locks outside methods", strangeLocks(p), map[string]int{"a/p.box": 2, "a/p.inner": 1}},
	} {
		if !maps.Equal(tt.got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.what, tt.got, tt.want)
		}
	}
	figures := map[string]int{"a": 4, "b": 6, "c": 6, "d": 6, "e": 2, "f": 18}
	got := strings.Join(checkFigures(figures, 4, map[string]int{"b": 6, "c": 7, "d": 5, "e": 5, "f": 19}, "lines has %s"), "\n")
	want := []string{"6 lines has d; at most 5", "c has 6, fewer than 7", "e has 2, which anything may have"}
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("got\n%s, want a line with %q", got, w)
		}
	}
	if n := strings.Count(got, "\n") + 1; n != len(want) {
		t.Errorf("got %d lines, want %d:\n%s", n, len(want), got)
	}
}
