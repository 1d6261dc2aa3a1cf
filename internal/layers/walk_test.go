package layers

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPagesNameWhatIsThere: the paths, the tests and the names of Go and Python that a page has
// between backquotes are in the tree. A function with a file behind it is declared in that file.
func TestPagesNameWhatIsThere(t *testing.T) {
	root := moduleRoot(t)
	x := readIndex(t, root)
	for _, page := range pagesOf(t, root) {
		name, err := filepath.Rel(root, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range x.missing(filepath.ToSlash(name), readPage(t, page)) {
			t.Errorf("%s: %s: name what is there now", name, what)
		}
	}
}

func TestPagesCanBeWrong(t *testing.T) {
	x := readIndex(t, moduleRoot(t))
	const text = "`Lease.Release`,\n`Lease.Steal` (shmstore/lease.go), `New` (ringbuf/ring.go) and `Store.evict` (shmstore/gone.go); `no.file`\n" +
		"`shmstore/lease.go` `shmstore/leases.go` `bus/host.Listen` `bus/host.Gone` `../codec` `../codecs` `vllm/serve.py`\n" +
		"`evict.go` `evicts.go` `*_unsafe.go` `TestPagesCanBeWrong` `TestPagesCanBeRight`\n" +
		"`shmstore.Store` `shmstore.Shop` `shmstore.Options.Reuse` `shmstore.Options.Waste` `time.Duration` `Store.Admit(conn)` `Store.Refund`\n" +
		"`tensorqueue.PutOptions` `PutOptions.Release` `omnibus.connect` `omnibus.disconnected` `omnibus.gpu.DeviceTensor` `omnibus.gpu.HostTensor`\n" +
		"`source.refuse` `source.refused` `MaxRequests` `MaxDemands` `makeRoom` `makeRoomFor` `httpGet` `results.jsonl` `--some flag`\n"
	want := []string{
		"shmstore/lease.go does not declare Lease.Steal", "there is no shmstore/gone.go",
		"`Lease.Steal`", "`shmstore/leases.go`", "`bus/host.Gone`", "`../codecs`", "`evicts.go`", "`TestPagesCanBeRight`",
		"`shmstore.Shop`", "`shmstore.Options.Waste`", "`Store.Refund`", "`omnibus.disconnected`", "`omnibus.gpu.HostTensor`",
		"`source.refused`", "`MaxDemands`", "`makeRoomFor`",
	}
	got := x.missing("docs/a.md", text)
	if len(got) != len(want) {
		t.Fatalf("got %q, want one for each of %q", got, want)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("got %q, want %s", got[i], want[i])
		}
	}
}

// pagesOf are the pages of the repository.
func pagesOf(t *testing.T, root string) (pages []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".")):
			return filepath.SkipDir
		case !entry.IsDir() && filepath.Ext(path) == ".md":
			pages = append(pages, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

var (
	span     = regexp.MustCompile("`([^`]+)`")
	pathLike = regexp.MustCompile(`^(\.\./)*[\w.*-]+(/[\w.*-]+)+/?$`)
	fileLike = regexp.MustCompile(`^[\w*-]+\.(go|py|pml|sh)$`)
	testLike = regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)[A-Z]\w+$`)
	dotted   = regexp.MustCompile(`^\w+(\.\w+)+$`)
	output   = regexp.MustCompile(`\.(txt|jsonl|json|yaml|wav|toml)$`)
	mixed    = regexp.MustCompile(`^[A-Z]\w*[a-z]\w*$|^[a-z]+[A-Z]\w*$`)
	call     = regexp.MustCompile(`[({].*[)}]$`)
)

// foreign are words of other programs that pages use.
var foreign = []string{"CUstream", "cudaMalloc", "httpGet"}

// missing lists the references of a page that are not in the tree. Paths begin at the root of the
// repository, or at the page.
func (x *index) missing(page, text string) (wrong []string) {
	wrong = misplaced(x.root, text)
	for _, m := range span.FindAllStringSubmatch(text, -1) {
		if why := x.lacks(page, call.ReplaceAllString(m[1], "")); why != "" {
			wrong = append(wrong, m[0]+": "+why)
		}
	}
	return wrong
}

// lacks says why a reference is wrong, or nothing.
func (x *index) lacks(page, ref string) string {
	switch {
	case pathLike.MatchString(ref):
		return x.lacksPath(page, ref)
	case fileLike.MatchString(ref):
		if !strings.Contains(ref, "*") && !x.bases[ref] {
			return "no file has this name"
		}
	case testLike.MatchString(ref):
		if !x.words[ref] {
			return "there is no such test"
		}
	case dotted.MatchString(ref) && !output.MatchString(ref):
		if !x.declares(page, strings.Split(ref, ".")) {
			return "this is not declared"
		}
	case mixed.MatchString(ref):
		if !x.words[ref] && !slices.Contains(foreign, ref) {
			return "no source has this word"
		}
	}
	return ""
}

func (x *index) lacksPath(page, ref string) string {
	dir, name := path.Split(ref)
	first, _, _ := strings.Cut(ref, "/")
	pkg, _, _ := strings.Cut(name, ".")
	switch {
	case !x.has("", first) && !x.has(path.Dir(page), first): // of another program
	case x.has("", ref), x.has(path.Dir(page), ref):
	case x.has(dir, pkg) && x.names[name]: // bus/host.Listen
	default:
		return "there is no such path"
	}
	return ""
}

// declares reports whether a name with dots is declared. It is believed of what is neither of a
// package nor of a type of the repository, and of variables in pages about Python.
func (x *index) declares(page string, parts []string) bool {
	switch first := parts[0]; {
	case first == "omnibus": // the Python package
		if parts = parts[1:]; len(parts) == 1 {
			return x.packages[parts[0]] || x.names["omnibus."+parts[0]]
		}
		last := parts[len(parts)-2:]
		return x.names[strings.Join(last, ".")] || x.packages[last[1]]
	case x.types[first] && (token.IsExported(first) || len(parts) == 2 && !strings.HasPrefix(page, "clients/")):
		return x.hasMember(first, parts[1], 3)
	case x.packages[first] && token.IsExported(parts[1]):
		return x.names[strings.Join(parts[:min(len(parts), 3)], ".")]
	}
	return true
}

var (
	stepped = regexp.MustCompile("((?:`[A-Za-z.]+`,? )+)\\(([a-z_/]+\\.go)\\)")
	named   = regexp.MustCompile("`([A-Za-z.]+)`")
)

// misplaced lists the functions that a page names with a file in which they are not.
func misplaced(root, text string) (wrong []string) {
	text = strings.Join(strings.Fields(text), " ")
	for _, m := range stepped.FindAllStringSubmatch(text, -1) {
		declared := declarations(filepath.Join(root, filepath.FromSlash(m[2])))
		if declared == nil {
			wrong = append(wrong, "there is no "+m[2])
			continue
		}
		for _, name := range named.FindAllStringSubmatch(m[1], -1) {
			if !declared[name[1]] {
				wrong = append(wrong, fmt.Sprintf("%s does not declare %s", m[2], name[1]))
			}
		}
	}
	return wrong
}

// declarations are the functions and types of a file, and its methods as Type.Method; nil: there is
// no such file.
func declarations(file string) map[string]bool {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil
	}
	names := make(map[string]bool)
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			names[strings.TrimPrefix(receiverOf(d)+"."+d.Name.Name, ".")] = true
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if s, ok := spec.(*ast.TypeSpec); ok {
					names[s.Name.Name] = true
				}
			}
		}
	}
	return names
}
