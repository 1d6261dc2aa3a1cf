package layers

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// file is the data of one Go file that the rules check.
type file struct {
	name      string // without its folder
	imports   []string
	generated bool
}

func (f file) isTest() bool { return strings.HasSuffix(f.name, "_test.go") }

// folder is one package and the tests beside it.
type folder struct {
	path  string // relative to the module, with slashes
	files []file
}

// readTree reads every Go file of the module, for all systems: a rule must hold on
// every machine. It reads the files itself, so the result of the test is cached
// until one of them changes.
func readTree(t *testing.T) []folder {
	t.Helper()
	root := moduleRoot(t)
	var folders []folder
	err := filepath.WalkDir(root, func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if dir != root && skipDir(dir, entry.Name()) {
			return filepath.SkipDir
		}
		files, err := readFolder(dir)
		if err != nil || len(files) == 0 {
			return err
		}
		rel, err := filepath.Rel(root, dir)
		if err != nil {
			return err
		}
		folders = append(folders, folder{path: filepath.ToSlash(rel), files: files})
		return nil
	})
	if err != nil {
		t.Fatalf("read the source tree: %v", err)
	}
	return folders
}

// skipDir skips the folders that the go command skips, and other modules, except the
// benchmarks, which keep the same rules.
func skipDir(dir, name string) bool {
	if name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil && name != "bench"
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatalf("package layers expects to live two folders below go.mod: %v", err)
	}
	if !bytes.HasPrefix(b, []byte("module "+module+"\n")) {
		t.Fatalf("%s is not the go.mod of %s", root, module)
	}
	return root
}

func readFolder(dir string) ([]file, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []file
	for _, entry := range entries {
		if entry.IsDir() || !strings.HasSuffix(entry.Name(), ".go") {
			continue
		}
		src, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // renamed since the folder was listed
		}
		if err != nil {
			return nil, err
		}
		f, err := parseFile(entry.Name(), src)
		if err != nil {
			return nil, fmt.Errorf("in %s: %w", dir, err)
		}
		files = append(files, f)
	}
	return files, nil
}

func parseFile(name string, src []byte) (file, error) {
	syntax, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return file{}, err
	}
	f := file{
		name:      name,
		generated: ast.IsGenerated(syntax),
	}
	for _, spec := range syntax.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return file{}, err
		}
		f.imports = append(f.imports, imported)
	}
	return f, nil
}

// within reports whether importPath is root or is below it.
func within(importPath, root string) bool {
	return importPath == root || strings.HasPrefix(importPath, root+"/")
}

// part returns the first element of a path inside the module, which is the part in
// the layer table.
func part(rel string) string {
	first, _, _ := strings.Cut(rel, "/")
	return first
}

// local returns the path of an import inside the module, and whether it is inside
// the module.
func local(importPath string) (string, bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// at names a file for a message.
func at(dir folder, f file) string { return path.Join(dir.path, f.name) }

// receiverOf is the name of the type that has a method, or empty.
func receiverOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	return typeName(fn.Recv.List[0].Type)
}

// typeName is the name of a type without its package and its arguments, or empty.
func typeName(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.IndexExpr:
		return typeName(x.X)
	case *ast.IndexListExpr:
		return typeName(x.X)
	case *ast.SelectorExpr:
		return x.Sel.Name
	case *ast.Ident:
		return x.Name
	}
	return ""
}
