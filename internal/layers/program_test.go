package layers

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// program is the module with its types, as it is built for Linux with every build tag but
// lockcheck, without its tests.
type program struct {
	fset     *token.FileSet
	packages []*checked // what a package imports stands before it
	outside  types.Importer
}

// checked is one package of it.
type checked struct {
	path  string // relative to the module
	files []*ast.File
	types *types.Package
	info  *types.Info
}

// readProgram checks the types of the module's packages once for all tests. It takes those of
// other modules from what the go command has built.
func readProgram(t *testing.T) *program {
	t.Helper()
	p, err := readOnce(moduleRoot(t))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var readOnce = func() func(root string) (*program, error) {
	var once sync.Once
	var p *program
	var err error
	return func(root string) (*program, error) {
		once.Do(func() { p, err = loadProgram(root) })
		return p, err
	}
}()

func loadProgram(root string) (*program, error) {
	cmd := exec.Command("go", "list", "-tags=cuda,invariants", "-export", "-deps", "-json=ImportPath,Export,GoFiles", "./...")
	cmd.Dir, cmd.Env, cmd.Stderr = root, append(os.Environ(), "GOOS=linux"), os.Stderr
	listed, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w", cmd, err)
	}
	exports := make(map[string]string)
	p := &program{fset: token.NewFileSet()}
	p.outside = importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for dec := json.NewDecoder(strings.NewReader(string(listed))); ; {
		var l struct {
			ImportPath, Export string
			GoFiles            []string
		}
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			return p, nil
		} else if err != nil {
			return nil, err
		}
		exports[l.ImportPath] = l.Export
		rel, ok := local(l.ImportPath)
		if !ok {
			continue
		}
		var files []*ast.File
		for _, name := range l.GoFiles {
			f, err := parser.ParseFile(p.fset, filepath.Join(root, filepath.FromSlash(rel), name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
		pkg, err := p.check(rel, files)
		if err != nil {
			return nil, err
		}
		p.packages = append(p.packages, pkg)
	}
}

// check checks the types of a package that imports those before it.
func (p *program) check(rel string, files []*ast.File) (*checked, error) {
	c := &checked{path: rel, files: files, info: &types.Info{
		Uses:       make(map[*ast.Ident]types.Object),
		Defs:       make(map[*ast.Ident]types.Object),
		Types:      make(map[ast.Expr]types.TypeAndValue),
		Selections: make(map[*ast.SelectorExpr]*types.Selection),
	}}
	config := types.Config{Importer: p}
	var err error
	c.types, err = config.Check(module+"/"+rel, p.fset, files, c.info)
	return c, err
}

// Import makes a program the importer of its packages.
func (p *program) Import(path string) (*types.Package, error) {
	for _, c := range p.packages {
		if c.types.Path() == path {
			return c.types, nil
		}
	}
	return p.outside.Import(path)
}

// programOf is the program of one package, a/b, of the given source: what shows that a rule can fail.
func programOf(t *testing.T, source string) *program {
	t.Helper()
	p := &program{fset: token.NewFileSet()}
	p.outside = readProgram(t).outside
	f, err := parser.ParseFile(p.fset, "more.go", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.check("a/"+f.Name.Name, []*ast.File{f})
	if err != nil {
		t.Fatal(err)
	}
	p.packages = append(p.packages, c)
	return p
}

// receiverOf is the name of the type that has a method, or empty.
func receiverOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	for e := fn.Recv.List[0].Type; ; {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
