package layers

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// index has the names that the pages of the repository may use.
type index struct {
	root     string
	bases    map[string]bool     // the names of files, without their folders
	packages map[string]bool     // the names of the packages and modules, without their folders
	types    map[string]bool     // the names of types and classes, without their packages
	names    map[string]bool     // package.Name, package.Type.Member and Type.Member
	within   map[string][]string // of a type: the types whose members it has too
	words    map[string]bool     // the identifiers of sources, and the words of their strings, but for those of this package
}

var (
	word        = regexp.MustCompile(`\w+`)
	pythonClass = regexp.MustCompile(`(?m)^class (\w+)`)
)

// readIndex reads every source of the repository.
func readIndex(t *testing.T, root string) *index {
	t.Helper()
	x := &index{
		root: root, bases: make(map[string]bool), packages: make(map[string]bool),
		types: make(map[string]bool), within: make(map[string][]string), names: make(map[string]bool), words: make(map[string]bool),
	}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != root && (entry.Name() == "testdata" || entry.Name() == "adr" || strings.HasPrefix(entry.Name(), ".")):
			return filepath.SkipDir
		case entry.IsDir():
			return nil
		}
		x.bases[entry.Name()] = true
		switch filepath.Ext(file) {
		case ".md":
			return nil
		case ".go":
			return x.addGo(file)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		x.addWords(string(text))
		if filepath.Ext(file) == ".py" {
			x.addPython(file, string(text))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *index) addWords(text string) {
	for _, w := range word.FindAllString(text, -1) {
		x.words[w] = true
	}
}

// addPython takes every word of a module for a name of it, and of its classes.
func (x *index) addPython(file, text string) {
	module := strings.TrimSuffix(filepath.Base(file), ".py")
	if module == "__init__" {
		module = filepath.Base(filepath.Dir(file))
	}
	x.packages[module] = true
	words := word.FindAllString(text, -1)
	owners := []string{module}
	for _, class := range pythonClass.FindAllStringSubmatch(text, -1) {
		x.types[class[1]] = true
		owners = append(owners, class[1], module+"."+class[1])
	}
	for _, owner := range owners {
		for _, w := range words {
			x.names[owner+"."+w] = true
		}
	}
}

func (x *index) addGo(file string) error {
	src, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	dir := path.Dir(strings.TrimPrefix(filepath.ToSlash(file), filepath.ToSlash(x.root)+"/"))
	set := token.NewFileSet()
	syntax, err := parser.ParseFile(set, file, src, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	var s scanner.Scanner
	s.Init(set.AddFile(file, -1, len(src)), src, nil, 0)
	for {
		_, tok, text := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.IDENT || tok == token.STRING && dir != "internal/layers" {
			x.addWords(text)
		}
	}
	pkg := strings.TrimSuffix(syntax.Name.Name, "_test")
	x.packages[pkg] = true
	for _, decl := range syntax.Decls {
		x.addDeclared(pkg, decl)
	}
	return nil
}

func (x *index) addDeclared(pkg string, decl ast.Decl) {
	member := func(of, name string) { x.names[of+"."+name], x.names[pkg+"."+of+"."+name] = true, true }
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if recv := receiverOf(d); recv != "" {
			member(recv, d.Name.Name)
		} else {
			x.names[pkg+"."+d.Name.Name] = true
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				for _, id := range s.Names {
					x.names[pkg+"."+id.Name] = true
				}
			case *ast.TypeSpec:
				x.types[s.Name.Name], x.names[pkg+"."+s.Name.Name] = true, true
				names, embedded := membersOf(s.Type)
				for _, name := range names {
					member(s.Name.Name, name)
				}
				x.within[s.Name.Name] = append(x.within[s.Name.Name], embedded...)
			}
		}
	}
}

// membersOf are the fields of a struct or the methods of an interface, and the types that it embeds
// or is another name of.
func membersOf(e ast.Expr) (names, embedded []string) {
	var fields *ast.FieldList
	switch t := e.(type) {
	case *ast.StructType:
		fields = t.Fields
	case *ast.InterfaceType:
		fields = t.Methods
	default:
		return nil, []string{typeName(e)}
	}
	for _, field := range fields.List {
		for _, id := range field.Names {
			names = append(names, id.Name)
		}
		if len(field.Names) == 0 {
			embedded = append(embedded, typeName(field.Type))
		}
	}
	return names, embedded
}

// hasMember reports whether a type has a member, or a type has it that is within that one.
func (x *index) hasMember(of, name string, depth int) bool {
	return x.names[of+"."+name] || depth > 0 && slices.ContainsFunc(x.within[of], func(inner string) bool {
		return x.hasMember(inner, name, depth-1)
	})
}

// has reports whether a path is there, from a folder of the repository. A star stands for a part
// of a name.
func (x *index) has(dir, name string) bool {
	found, err := filepath.Glob(filepath.Join(x.root, filepath.FromSlash(dir), filepath.FromSlash(name)))
	return err == nil && len(found) > 0
}
