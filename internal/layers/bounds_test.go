package layers

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestBoundsHaveTheirValues: a row of docs/bounds.md that names a constant of Go has the constant's value.
func TestBoundsHaveTheirValues(t *testing.T) {
	root := moduleRoot(t)
	page, err := os.ReadFile(filepath.Join(root, "docs", "bounds.md"))
	if err != nil {
		t.Fatal(err)
	}
	values, found := constantsOf(t, root), 0
	for row := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|")
		if !strings.HasPrefix(row, "| ") || len(cells) < 3 {
			continue
		}
		for _, name := range quotedName.FindAllStringSubmatch(cells[len(cells)-1], -1) {
			all := values[name[1]]
			if len(all) == 0 {
				continue // a function, a field, or a name of Python
			}
			found++
			if !showsOne(strings.Join(cells[:len(cells)-1], "|"), all) {
				t.Errorf("docs/bounds.md: %s is %s, which its row does not say: %s", name[1], forms(all[0])[0], strings.TrimSpace(row))
			}
		}
	}
	if found < 100 {
		t.Errorf("%d constants were found, want most of those of the page", found)
	}
}

func TestFormsOfBounds(t *testing.T) {
	for _, c := range []struct {
		text  string
		value int64
		shown bool
	}{
		{"at most 2²⁰", 1 << 20, true},
		{"at most 2²⁰", 1 << 2, false},
		{"1,024; 64", 1024, true},
		{"1,024; 64", 24, false},
		{"64 KiB to 2³⁸ bytes", 64 << 10, true},
		{"164 KiB", 64 << 10, false},
		{"a quarter", 4, true},
		{"10 min", int64(10 * time.Minute), true},
		{"50 µs to 5 ms", int64(50 * time.Microsecond), true},
		{"2⁴⁰ − 1", 1<<40 - 1, true},
	} {
		if showsOne(c.text, []int64{c.value}) != c.shown {
			t.Errorf("%q shows %d: want %t", c.text, c.value, c.shown)
		}
	}
}

// quotedName is the name of a constant, with its package or without.
var quotedName = regexp.MustCompile("`((?:[a-z]\\w*\\.)?\\w+)`")

// showsOne reports whether a text has one of the values in one of its forms, and not as a part of another number.
func showsOne(text string, values []int64) bool {
	for _, v := range values {
		for _, form := range forms(v) {
			if regexp.MustCompile(`(?:^|[^\pL\d,²])` + regexp.QuoteMeta(form) + `(?:$|[^\pL\d⁰¹²³⁴-⁹,]|,\D)`).MatchString(text) {
				return true
			}
		}
	}
	return false
}

// forms are the ways in which the page writes a value: a number, with a unit of bytes or of time, a power of two, or a share.
func forms(v int64) []string {
	all := []string{grouped(v)}
	for unit, name := range map[int64]string{1 << 10: "KiB", 1 << 20: "MiB", 1 << 30: "GiB", 1e3: "µs", 1e6: "ms", 1e9: "s", 60e9: "min"} {
		if v >= unit && v%unit == 0 {
			all = append(all, grouped(v/unit)+" "+name)
		}
	}
	if v > 0 && v&(v-1) == 0 {
		all = append(all, "2"+superscript(bits.TrailingZeros64(uint64(v))))
	}
	if v > 0 && v&(v+1) == 0 {
		all = append(all, "2"+superscript(bits.TrailingZeros64(uint64(v+1)))+" − 1")
	}
	switch v {
	case 2:
		all = append(all, "half")
	case 3:
		all = append(all, "three")
	case 4:
		all = append(all, "quarter", "quarters")
	case 8:
		all = append(all, "eighth")
	case 10:
		all = append(all, "tenth")
	}
	return all
}

// grouped writes a number with a comma before each three digits.
func grouped(v int64) string {
	s := strconv.FormatInt(v, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func superscript(n int) string {
	var s strings.Builder
	for _, digit := range strconv.Itoa(n) {
		s.WriteRune([]rune("⁰¹²³⁴⁵⁶⁷⁸⁹")[digit-'0'])
	}
	return s.String()
}

// constantsOf evaluates the whole numbers and durations that the packages of the module declare as constants. A name
// that several packages declare has several values; with the name of its package it has one. A logarithm counts as the
// number that it is of.
func constantsOf(t *testing.T, root string) map[string][]int64 {
	t.Helper()
	all := make(map[string][]int64)
	err := filepath.WalkDir(root, func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if name := entry.Name(); dir != root && (name == "testdata" || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return err
		}
		e := evaluator{exprs: make(map[string]ast.Expr)}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				return fmt.Errorf("parse %s: %w", file, err)
			}
			e.add(syntax)
		}
		for name, expr := range e.exprs {
			if v, exact := constant.Int64Val(constant.ToInt(e.value(expr, 0))); exact {
				if strings.HasSuffix(name, "Log") {
					v = 1 << v
				}
				all[name], all[e.pkg+"."+name] = append(all[name], v), append(all[e.pkg+"."+name], v)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// evaluator has the constants of one package.
type evaluator struct {
	pkg   string
	exprs map[string]ast.Expr
}

func (e *evaluator) add(file *ast.File) {
	e.pkg = file.Name.Name
	for _, decl := range file.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST && d.Tok != token.VAR {
			continue
		}
		for _, spec := range d.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok && len(v.Values) == len(v.Names) {
				for i, name := range v.Names {
					e.exprs[name.Name] = v.Values[i]
				}
			}
		}
	}
}

var units = map[string]time.Duration{
	"Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute,
}

// value evaluates an expression of numbers, durations and other constants of the package; others are unknown.
func (e evaluator) value(expr ast.Expr, depth int) constant.Value {
	unknown := constant.MakeUnknown()
	if depth > 10 {
		return unknown
	}
	switch x := expr.(type) {
	case *ast.BasicLit:
		if x.Kind == token.INT || x.Kind == token.FLOAT {
			return constant.MakeFromLiteral(x.Value, x.Kind, 0)
		}
	case *ast.Ident:
		if of := e.exprs[x.Name]; of != nil {
			return e.value(of, depth+1)
		}
	case *ast.ParenExpr:
		return e.value(x.X, depth+1)
	case *ast.SelectorExpr:
		if unit := units[x.Sel.Name]; unit > 0 {
			return constant.MakeInt64(int64(unit))
		}
	case *ast.BinaryExpr:
		a, b := constant.ToInt(e.value(x.X, depth+1)), constant.ToInt(e.value(x.Y, depth+1))
		if a.Kind() != constant.Int || b.Kind() != constant.Int {
			return unknown
		}
		switch x.Op { //nolint:exhaustive // others are not used
		case token.SHL:
			n, _ := constant.Uint64Val(b)
			return constant.Shift(a, token.SHL, uint(n))
		case token.QUO:
			if constant.Sign(b) == 0 {
				return unknown
			}
			return constant.BinaryOp(a, token.QUO_ASSIGN, b)
		case token.ADD, token.SUB, token.MUL:
			return constant.BinaryOp(a, x.Op, b)
		}
	}
	return unknown
}
