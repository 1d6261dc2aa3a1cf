package layers

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestWalkOfArchitecture: docs/ARCHITECTURE.md leads a reader through the code by functions and
// their files. Each function that it names is declared in the file named behind it.
func TestWalkOfArchitecture(t *testing.T) {
	root := moduleRoot(t)
	page := filepath.Join(root, "docs", "ARCHITECTURE.md")
	steps, wrong := walk(t, root, page)
	for _, what := range wrong {
		t.Errorf("docs/ARCHITECTURE.md: %s: name the function that does it now, and its file", what)
	}
	if steps < 30 {
		t.Errorf("docs/ARCHITECTURE.md names %d functions with their files, and needs at least 30 to lead to where memory is freed", steps)
	}
}

func TestWalkCanBeWrong(t *testing.T) {
	page := filepath.Join(t.TempDir(), "a.md")
	text := "`Lease.Release`,\n`Lease.Steal` (shmstore/lease.go), `New` (ringbuf/ring.go) and `Store.evict` (shmstore/gone.go); `no.file`\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	steps, wrong := walk(t, moduleRoot(t), page)
	want := "shmstore/lease.go does not declare Lease.Steal; there is no shmstore/gone.go"
	if got := strings.Join(wrong, "; "); steps != 4 || got != want {
		t.Errorf("%d steps: %s; want 4: %s", steps, got, want)
	}
}

var (
	stepped = regexp.MustCompile("((?:`[A-Za-z.]+`,? )+)\\(([a-z_/]+\\.go)\\)")
	named   = regexp.MustCompile("`([A-Za-z.]+)`")
)

// walk finds the functions that a page names together with a file, and says which are not there.
func walk(t *testing.T, root, page string) (steps int, wrong []string) {
	t.Helper()
	text := strings.Join(strings.Fields(readPage(t, page)), " ")
	for _, m := range stepped.FindAllStringSubmatch(text, -1) {
		declared := declarations(filepath.Join(root, filepath.FromSlash(m[2])))
		if declared == nil {
			wrong = append(wrong, "there is no "+m[2])
		}
		for _, name := range named.FindAllStringSubmatch(m[1], -1) {
			steps++
			if declared != nil && !declared[name[1]] {
				wrong = append(wrong, fmt.Sprintf("%s does not declare %s", m[2], name[1]))
			}
		}
	}
	return steps, wrong
}

// declarations are the functions of a file, and its methods as Type.Method; nil: there is no such file.
func declarations(file string) map[string]bool {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil
	}
	names := make(map[string]bool)
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		switch {
		case !ok:
		case fn.Recv == nil:
			names[fn.Name.Name] = true
		default:
			names[receiverOf(fn)+"."+fn.Name.Name] = true
		}
	}
	return names
}
