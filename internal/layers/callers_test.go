package layers

import (
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNothingIsWithoutCaller: what a package declares is reached from a command of the module,
// or is a promise to programs that embed the library. Tests, benchmarks and examples do not
// count.
func TestNothingIsWithoutCaller(t *testing.T) {
	report(t, checkCallers(readProgram(t), namesOf(promises), forTests))
}

// reach follows the uses of what packages declare.
type reach struct {
	p        *program
	uses     map[types.Object][]types.Object // of a declaration by another
	roots    []types.Object
	declared map[types.Object]string // its name: path.Func, path.Type, path.Type.Method
	methods  map[types.Object][]*types.Func
	called   map[string][]*types.Interface // interfaces that have a method of a name
	found    map[types.Object]bool
}

// checkCallers lists the functions, methods and types that nothing reaches, and the promises
// that are not needed: those that are reached without, or are not declared.
func checkCallers(p *program, promised []string, tests []string) (broken []string) {
	r := newReach(p, tests)
	r.follow(r.roots)
	names := make(map[string]types.Object)
	for obj, name := range r.declared {
		names[name] = obj
	}
	for _, name := range promised {
		switch obj := names[name]; {
		case obj == nil:
			broken = append(broken, fmt.Sprintf("%s is promised and not there: take it out of internal/layers/promises_test.go", name))
		case r.found[obj]:
			broken = append(broken, fmt.Sprintf("%s has a caller in the module and needs no promise: take it out of internal/layers/promises_test.go", name))
		}
	}
	for _, name := range promised {
		if obj := names[name]; obj != nil {
			r.follow([]types.Object{obj})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if obj := names[name]; !r.found[obj] {
			at := p.fset.Position(obj.Pos())
			broken = append(broken, fmt.Sprintf("%s (%s:%d) has no caller outside tests, benchmarks and examples: delete it, or promise it in internal/layers/promises_test.go", name, path.Base(at.Filename), at.Line))
		}
	}
	return broken
}

func newReach(p *program, tests []string) *reach {
	r := &reach{
		p: p, uses: make(map[types.Object][]types.Object), declared: make(map[types.Object]string),
		methods: make(map[types.Object][]*types.Func), called: make(map[string][]*types.Interface), found: make(map[types.Object]bool),
	}
	seen := make(map[*types.Package]bool)
	for _, c := range p.packages {
		r.interfacesOf(c.types, seen)
		r.interfacesIn(c)
		if !slices.ContainsFunc(tests, func(part string) bool { return within(c.path, part) }) {
			r.read(c)
		}
	}
	r.addInterface(types.Universe.Lookup("error").Type())
	return r
}

// read takes down what a package declares, and what each declaration uses.
func (r *reach) read(c *checked) {
	for _, f := range c.files {
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				obj := c.info.Defs[d.Name]
				recv := receiverOf(d)
				switch {
				case recv == "" && (d.Name.Name == "init" || d.Name.Name == "main" && c.types.Name() == "main"):
					r.roots = append(r.roots, obj)
				case recv == "":
					r.declared[obj] = c.path + "." + d.Name.Name
				default:
					r.declared[obj] = c.path + "." + recv + "." + d.Name.Name
					of := c.types.Scope().Lookup(recv)
					r.methods[of] = append(r.methods[of], obj.(*types.Func))
				}
				r.use(c, d, obj)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					r.readSpec(c, spec)
				}
			}
		}
	}
}

func (r *reach) readSpec(c *checked, spec ast.Spec) {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		obj := c.info.Defs[s.Name]
		r.declared[obj] = c.path + "." + s.Name.Name
		r.use(c, s, obj)
	case *ast.ValueSpec:
		for _, id := range s.Names {
			obj := c.info.Defs[id]
			r.use(c, s, obj)
			if id.Name == "_" && !isAssertion(s) {
				r.roots = append(r.roots, obj)
			}
		}
	}
}

// isAssertion is about var _ I = (*T)(nil), which calls nothing.
func isAssertion(s *ast.ValueSpec) bool { return s.Type != nil }

// use takes down what the syntax of a declaration uses.
func (r *reach) use(c *checked, n ast.Node, by types.Object) {
	ast.Inspect(n, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		obj := c.info.Uses[id]
		if fn, ok := obj.(*types.Func); ok {
			obj = fn.Origin()
		}
		if obj != nil && obj != by {
			r.uses[by] = append(r.uses[by], obj)
		}
		return true
	})
}

// follow finds what objects use, and what that uses in turn.
func (r *reach) follow(from []types.Object) {
	for next := slices.Clone(from); len(next) > 0; {
		obj := next[len(next)-1]
		next = next[:len(next)-1]
		if r.found[obj] {
			continue
		}
		r.found[obj] = true
		next = append(next, r.uses[obj]...)
		for _, m := range r.methods[obj] {
			if r.throughInterface(obj, m) {
				next = append(next, m)
			}
		}
	}
}

// throughInterface reports whether a method can be called through an interface that its type
// implements.
func (r *reach) throughInterface(of types.Object, m *types.Func) bool {
	if slices.Contains([]string{"As", "Is", "Unwrap"}, m.Name()) { // by package errors
		return true
	}
	named, ok := of.Type().(*types.Named)
	if !ok {
		return false
	}
	for _, i := range r.called[m.Name()] {
		if named.TypeParams().Len() > 0 || types.Implements(types.NewPointer(named), i) {
			return true
		}
	}
	return false
}

// interfacesOf takes down the interfaces that a package and those that it imports declare.
func (r *reach) interfacesOf(pkg *types.Package, seen map[*types.Package]bool) {
	if seen[pkg] {
		return
	}
	seen[pkg] = true
	for _, name := range pkg.Scope().Names() {
		if tn, ok := pkg.Scope().Lookup(name).(*types.TypeName); ok {
			r.addInterface(tn.Type())
		}
	}
	for _, imported := range pkg.Imports() {
		r.interfacesOf(imported, seen)
	}
}

// interfacesIn takes down the interfaces that a package writes without a name.
func (r *reach) interfacesIn(c *checked) {
	for e, tv := range c.info.Types {
		if _, ok := e.(*ast.InterfaceType); ok {
			r.addInterface(tv.Type)
		}
	}
}

func (r *reach) addInterface(t types.Type) {
	i, ok := t.Underlying().(*types.Interface)
	if !ok {
		return
	}
	for m := range i.Methods() {
		r.called[m.Name()] = append(r.called[m.Name()], i)
	}
}

func TestCallersCanBeMissing(t *testing.T) {
	const src = `package p

import "fmt"

func init() { used(); _ = fmt.Sprint(shown{}); fmt.Println(listed) }

type shown struct{}

func (shown) String() string { return "" }
func (shown) lonely()        {}

func used() { _ = keep[int]{} }

type keep[T any] struct{ v T }

func (keep[T]) String() string { return "" }

var listed = []any{inTable}

func inTable() {}

func dead() { onlyByDead() }

func onlyByDead() { dead() }

type Unused struct{}

func Promised() { byPromised() }

func byPromised() {}
`
	var got []string
	for _, b := range checkCallers(programOf(t, src), []string{"a/p.Promised", "a/p.used", "a/p.Gone"}, nil) {
		name, rest, _ := strings.Cut(b, " ")
		what, _, _ := strings.Cut(rest, ":")
		if strings.HasPrefix(what, "(more.go") {
			what = "unused"
		}
		got = append(got, name+" "+what)
	}
	want := []string{
		"a/p.used has a caller in the module and needs no promise", "a/p.Gone is promised and not there",
		"a/p.Unused unused", "a/p.dead unused", "a/p.onlyByDead unused", "a/p.shown.lonely unused",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if broken := checkCallers(programOf(t, src), nil, []string{"a"}); len(broken) > 0 {
		t.Errorf("of a part that is for tests: %q", broken)
	}
}
