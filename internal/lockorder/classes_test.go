package lockorder

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ordered are the packages whose mutexes have classes: those that a delivery goes through. Any
// other package takes none of their locks under its own and calls none of them while it holds a
// lock, or, as cudaipc, has locks that come after all of theirs.
var ordered = []string{
	"actors", "bus", "bus/host", "bus/node", "bus/tensorqueue", "connector/ring", "shmstore", "shmstore/lane",
	"internal/directory", "internal/exchange", "internal/lastactive", "internal/accounts", "internal/peer", "internal/pool",
	"internal/process", "internal/hostnode",
}

// TestMutexesHaveClasses: each mutex of the ordered packages has a class of its own in order.go,
// whose comment names the field.
func TestMutexesHaveClasses(t *testing.T) {
	root := filepath.Join("..", "..")
	set := token.NewFileSet()
	var c classes
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != root && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".")):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil || filepath.ToSlash(dir) == "internal/lockorder" {
			return err
		}
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err == nil {
			c.read(filepath.ToSlash(dir), f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range ordered {
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(dir))); err != nil {
			t.Error(err)
		}
	}
	order, err := parser.ParseFile(set, "order.go", nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range c.wrong(order) {
		t.Error(wrong)
	}
}

// classes are the fields that are mutexes with a class, and those without one.
type classes struct {
	fields map[string][]string // by class
	rights map[string]bool     // the fields that are rights
	plain  []string
}

// read collects the mutexes of a file.
func (c *classes) read(dir string, f *ast.File) {
	if c.fields == nil {
		c.fields, c.rights = make(map[string][]string), make(map[string]bool)
	}
	for _, decl := range f.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range d.Specs {
			owner := dir + "."
			if s, ok := spec.(*ast.TypeSpec); ok {
				owner += s.Name.Name + "."
			}
			ast.Inspect(spec, func(n ast.Node) bool {
				if field, ok := n.(*ast.Field); ok {
					c.readField(owner, field, slices.Contains(ordered, dir))
				}
				return true
			})
		}
	}
}

func (c *classes) readField(owner string, field *ast.Field, inOrder bool) {
	e := field.Type
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	for _, id := range field.Names {
		switch t := e.(type) {
		case *ast.SelectorExpr:
			if inOrder && isOf(t, "sync", "Mutex", "RWMutex") {
				c.plain = append(c.plain, owner+id.Name)
			}
		case *ast.IndexExpr:
			if kind, ok := t.X.(*ast.SelectorExpr); ok && isOf(kind, "lockorder", "Mutex", "RWMutex", "Right") {
				class := "none"
				if sel, ok := t.Index.(*ast.SelectorExpr); ok {
					class = sel.Sel.Name
				}
				c.fields[class] = append(c.fields[class], owner+id.Name)
				c.rights[owner+id.Name] = kind.Sel.Name == "Right"
			}
		}
	}
}

func isOf(sel *ast.SelectorExpr, pkg string, names ...string) bool {
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg && slices.Contains(names, sel.Sel.Name)
}

// wrong compares the fields with the classes of order.go and their comments.
func (c *classes) wrong(order *ast.File) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for _, field := range c.plain {
		say("%s is a mutex of package sync: give it a class of order.go", field)
	}
	declared := make(map[string]bool)
	ast.Inspect(order, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		array, ok := spec.Type.(*ast.ArrayType)
		if !ok {
			return false
		}
		class := spec.Name.Name
		declared[class] = true
		switch fields := c.fields[class]; {
		case len(fields) == 0:
			say("no field has the class %s: delete it", class)
		case len(fields) > 1:
			say("%s have the class %s: each field has its own", strings.Join(fields, " and "), class)
		case !strings.HasPrefix(spec.Comment.Text(), fields[0]+": "):
			say("the comment of class %s does not begin with its field, %q", class, fields[0]+": ")
		case c.rights[fields[0]] != (array.Elt.(*ast.Ident).Name == "right"):
			say("%s is a Right, or its class %s is a right, and not both", fields[0], class)
		}
		return false
	})
	for _, class := range slices.Sorted(maps.Keys(c.fields)) {
		if !declared[class] {
			say("the class %s of %s is not in order.go", class, strings.Join(c.fields[class], " and "))
		}
	}
	return wrong
}

func TestClassFaultsAreReported(t *testing.T) {
	parse := func(src string) *ast.File {
		f, err := parser.ParseFile(token.NewFileSet(), "a.go", src, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	var c classes
	c.read("bus", parse(`package bus

type box struct {
	plain sync.Mutex
	also  *sync.RWMutex
	mu    lockorder.Mutex[lockorder.Outputs]
	more  lockorder.RWMutex[lockorder.Outputs]
	right lockorder.Right[lockorder.Latency]
	lock  *lockorder.Mutex[lockorder.FlowSleep]
	own   lockorder.Mutex[own]
	gone  lockorder.Mutex[lockorder.Gone]
	fine  lockorder.Mutex[lockorder.Bus]
}

var table struct{ mu sync.Mutex }
`))
	c.read("cudaipc", parse("package cudaipc\n\ntype other struct{ mu sync.Mutex }\n"))
	got := c.wrong(parse(`package lockorder

type (
	Outputs     [1]lock  // bus.box.more: one
	Latency    [2]lock  // bus.box.right: another
	FlowSleep [3]right // bus.lock: of no type
	Bus        [4]lock  // bus.box.fine: right
	Request    [5]lock  // bus.Request.mu: gone
)
`))
	want := []string{
		"bus.box.plain is a mutex of package sync", "bus.box.also is a mutex of package sync", "bus.mu is a mutex of package sync",
		"bus.box.mu and bus.box.more have the class Outputs", "bus.box.right is a Right, or its class Latency",
		"the comment of class FlowSleep", "no field has the class Request", "the class Gone of bus.box.gone is not in",
		"the class none of bus.box.own is not in",
	}
	if len(got) != len(want) {
		t.Fatalf("got %q, want %d lines", got, len(want))
	}
	for i, line := range got {
		if !strings.HasPrefix(line, want[i]) {
			t.Errorf("got %q, want %q", line, want[i])
		}
	}
}
