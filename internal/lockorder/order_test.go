package lockorder

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"
)

// TestClassesStandInTheirOrder: the classes in order.go are sorted by rank, rights first.
func TestClassesStandInTheirOrder(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "order.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	last, locks, classes := 0, false, 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		array, ok := spec.Type.(*ast.ArrayType)
		if !ok {
			return false
		}
		classes++
		rank, err := strconv.Atoi(array.Len.(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		if rank < last {
			t.Errorf("%s has rank %d and stands behind rank %d", spec.Name.Name, rank, last)
		}
		kind := array.Elt.(*ast.Ident).Name
		if kind == "right" && locks {
			t.Errorf("%s is a right and stands behind a lock", spec.Name.Name)
		}
		last, locks = rank, locks || kind == "lock"
		return false
	})
	if classes == 0 {
		t.Error("order.go has no class")
	}
}
