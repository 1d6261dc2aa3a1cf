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

// lockorderPath is the package that has the classes of locks.
const lockorderPath = "internal/lockorder"

// ordered are the packages whose mutexes have classes: those that a delivery goes through. A
// package that is left out takes none of their locks under its own and calls into none of them
// while it holds one, or, as cudaipc, has locks that come after all of theirs.
var ordered = []string{
	"actors", "bus", "bus/host", "bus/node", "bus/tensorqueue", "connector/ring", "shmstore", "shmstore/lane",
	"internal/directory", "internal/exchange", "internal/heard", "internal/ledger", "internal/peer", "internal/pool",
	"internal/process", "internal/terms",
}

// TestMutexesHaveClasses: the checker of internal/lockorder sees each lock of these packages, and
// order.go says where each stands.
func TestMutexesHaveClasses(t *testing.T) {
	p := readProgram(t)
	for _, path := range ordered {
		if !slices.ContainsFunc(p.packages, func(c *checked) bool { return c.path == path }) {
			t.Errorf("there is no package %s", path)
		}
	}
	i := slices.IndexFunc(p.packages, func(c *checked) bool { return c.path == lockorderPath })
	report(t, checkClasses(p, ordered, classComments(p.packages[i])))
}

// checkClasses compares the fields that are mutexes with the classes of locks and their comments.
func checkClasses(p *program, ordered []string, comments map[string]string) (broken []string) {
	fieldOf := make(map[string]string) // by class
	for _, c := range p.packages {
		fields := mutexFields(c)
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			class, right := classOfField(fields[name].Type())
			switch {
			case class == nil && slices.Contains(ordered, c.path):
				broken = append(broken, fmt.Sprintf("%s is a mutex of package sync: give it a class of %s/order.go", name, lockorderPath))
			case class == nil:
			case fieldOf[class.Name()] != "":
				broken = append(broken, fmt.Sprintf("%s and %s have the class %s: each field has its own", fieldOf[class.Name()], name, class.Name()))
			default:
				fieldOf[class.Name()] = name
				if kind := elementOf(class); (kind == "right") != right {
					broken = append(broken, fmt.Sprintf("%s is a lockorder.Right, or its class %s is a right, and not both", name, class.Name()))
				}
			}
		}
	}
	for class, comment := range comments {
		if field := fieldOf[class]; field == "" {
			broken = append(broken, fmt.Sprintf("no field has the class %s: delete it from %s/order.go", class, lockorderPath))
		} else if !strings.HasPrefix(comment, field+": ") {
			broken = append(broken, fmt.Sprintf("the comment of class %s in %s/order.go does not begin with its field, %q", class, lockorderPath, field+": "))
		}
	}
	for class, field := range fieldOf {
		if _, ok := comments[class]; !ok {
			broken = append(broken, fmt.Sprintf("the class %s of %s is not in %s/order.go", class, field, lockorderPath))
		}
	}
	slices.Sort(broken)
	return broken
}

// mutexFields are the fields of structs that are mutexes, or point at one.
func mutexFields(c *checked) map[string]*types.Var {
	fields := make(map[string]*types.Var)
	for id, obj := range c.info.Defs {
		v, ok := obj.(*types.Var)
		if !ok || !v.IsField() || !isMutex(v.Type()) {
			continue
		}
		fields[c.path+"."+ownerOf(c, id)+v.Name()] = v
	}
	return fields
}

// ownerOf is the name of the declared type that a field stands in, with a dot, or empty.
func ownerOf(c *checked, field *ast.Ident) string {
	for _, file := range c.files {
		for _, decl := range file.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok || field.Pos() < d.Pos() || field.Pos() > d.End() {
				continue
			}
			for _, spec := range d.Specs {
				if s, ok := spec.(*ast.TypeSpec); ok && s.Pos() < field.Pos() && field.Pos() < s.End() {
					return s.Name.Name + "."
				}
			}
		}
	}
	return ""
}

func elem(t types.Type) types.Type {
	if ptr, ok := t.(*types.Pointer); ok {
		return ptr.Elem()
	}
	return t
}

func isMutex(t types.Type) bool {
	named, ok := types.Unalias(elem(t)).(*types.Named)
	if !ok || named.Obj().Pkg() == nil || named.Obj().Pkg().Path() != "sync" {
		return false
	}
	return named.Obj().Name() == "Mutex" || named.Obj().Name() == "RWMutex"
}

// classOfField is the class of a field's mutex, or nil, and whether the mutex is a right.
func classOfField(t types.Type) (class *types.TypeName, right bool) {
	alias, ok := elem(t).(*types.Alias)
	if !ok || alias.TypeArgs().Len() != 1 {
		return nil, false
	}
	named, ok := alias.TypeArgs().At(0).(*types.Named)
	if !ok {
		return nil, false
	}
	return named.Obj(), alias.Obj().Name() == "Right"
}

// elementOf is the name of what the array of a class is of.
func elementOf(class *types.TypeName) string {
	if array, ok := class.Type().Underlying().(*types.Array); ok {
		if named, ok := array.Elem().(*types.Named); ok {
			return named.Obj().Name()
		}
	}
	return ""
}

// classComments are the classes that order.go declares, with their comments.
func classComments(c *checked) map[string]string {
	comments := make(map[string]string)
	for _, file := range c.files {
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if _, ok := spec.Type.(*ast.ArrayType); ok {
					comments[spec.Name.Name] = spec.Comment.Text()
				}
			}
			return true
		})
	}
	return comments
}

func TestClassesCanBeWrong(t *testing.T) {
	p := programOf(t, `package p

import (
	"sync"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

type own [1]int

type box struct {
	plain sync.Mutex
	also  *sync.RWMutex
	mu    lockorder.Mutex[lockorder.Outlet]
	more  lockorder.RWMutex[lockorder.Outlet]
	right lockorder.Right[lockorder.Latency]
	lock  *lockorder.Mutex[lockorder.FlowAsleep]
	own   lockorder.Mutex[own]
	fine  lockorder.Mutex[lockorder.Bus]
}

var table struct{ mu sync.Mutex }
`)
	got := checkClasses(p, []string{"a/p"}, map[string]string{
		"Outlet": "a/p.box.more: one", "Latency": "a/p.box.right: another", "FlowAsleep": "a/p.lock: of no type",
		"Bus": "a/p.box.fine: right", "Request": "bus.Request.mu: gone",
	})
	want := []string{
		"a/p.box.plain is a mutex of package sync", "a/p.box.also is a mutex of package sync", "a/p.mu is a mutex of package sync",
		"a/p.box.more and a/p.box.mu have the class Outlet", "a/p.box.right is a lockorder.Right, or its class Latency",
		"a/p.box.lock is a lockorder.Right, or its class FlowAsleep", "the class own of a/p.box.own is not in",
		"no field has the class Request", "the comment of class FlowAsleep",
	}
	for _, w := range want {
		if !strings.Contains(strings.Join(got, "\n"), w) {
			t.Errorf("no line has %q", w)
		}
	}
	for _, line := range got {
		if !slices.ContainsFunc(want, func(w string) bool { return strings.Contains(line, w) }) {
			t.Errorf("unexpected: %s", line)
		}
	}
}
