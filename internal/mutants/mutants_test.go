package main

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

const fixture = "testdata/fixture"

// Every mutant of the fixture module is named after its expected verdict.
func TestVerdicts(t *testing.T) {
	tests := []struct {
		name    string
		by      string
		err     error
		tried   bool          // whether the runner changed the code
		timeout time.Duration // 0 means a long one
	}{
		{name: "caught", by: "TestLimit/none TestLimit/three", tried: true},
		{name: "crash", by: "by crash", tried: true},
		{name: "hang", by: "by timeout", tried: true, timeout: time.Second},
		{name: "no-build", err: errNoBuild, tried: true},
		{name: "no-test", err: errNoTest},
		{name: "red", err: errBaseline},
		{name: "stale", err: errNotApplicable, tried: true},
		{name: "survives", err: errSurvived, tried: true},
	}
	before := snapshot(t)
	mutants := fixtureMutants(t)
	if len(mutants) != len(tests) {
		t.Fatalf("%d mutants in the fixture, %d in the table", len(mutants), len(tests))
	}
	root, err := filepath.Abs(fixture)
	if err != nil {
		t.Fatal(err)
	}
	r := newRunner(root, t.TempDir(), time.Minute)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, ok := mutants[tt.name]
			if !ok {
				t.Fatal("no such mutant in the fixture")
			}
			r.timeout = cmp.Or(tt.timeout, time.Minute)
			v := r.try(t.Context(), m)
			if !errors.Is(v.err, tt.err) {
				t.Errorf("error %v, want %v", v.err, tt.err)
			}
			if v.by != tt.by {
				t.Errorf("caught by %q, want %q", v.by, tt.by)
			}
			if tried := v.took > 0; tried != tt.tried {
				t.Errorf("tried: %v, want %v", tried, tt.tried)
			}
		})
	}
	if diff := gocmp.Diff(before, snapshot(t)); diff != "" {
		t.Errorf("the run changed the source tree (-before +after):\n%s", diff)
	}
}

func fixtureMutants(t *testing.T) map[string]mutant {
	t.Helper()
	all, err := loadMutants(filepath.Join(fixture, "list"))
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]mutant{}
	for _, m := range all {
		byName[m.name] = m
	}
	return byName
}

func snapshot(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(fixture, "*"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, path := range paths {
		if filepath.Ext(path) == "" {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[path] = string(b)
	}
	return files
}

func TestCommand(t *testing.T) {
	tests := []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{name: "caught", args: []string{"-run", "^caught$"}, code: exitCaught, stdout: "1 of 1 mutants caught"},
		{name: "survived", args: []string{"-run", "^survives$"}, code: exitSurvived, stdout: "NOT CAUGHT: SURVIVED"},
		{name: "says why it matters", args: []string{"-run", "^stale$"}, code: exitSurvived, stdout: "stale: The code has moved on."},
		{name: "no mutant", args: []string{"-run", "nothing"}, code: exitUsage, stderr: "no mutant in list matches"},
		{name: "bad expression", args: []string{"-run", "("}, code: exitUsage, stderr: "-run:"},
		{name: "bad part", args: []string{"-part", "3/2"}, code: exitUsage, stderr: "-part:"},
		{name: "bad flag", args: []string{"-x"}, code: exitUsage, stderr: "-x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append([]string{"-root", fixture, "-list", "list"}, tt.args...)
			if code := run(t.Context(), args, &stdout, &stderr); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if !strings.Contains(stdout.String(), tt.stdout) {
				t.Errorf("stdout %q, want %q in it", stdout.String(), tt.stdout)
			}
			if !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("stderr %q, want %q in it", stderr.String(), tt.stderr)
			}
		})
	}
}

// Tests that draw random values need flags that other tests do not accept.
func TestDrawsRandom(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	r := newRunner(root, t.TempDir(), time.Minute)
	for pkg, want := range map[string]bool{"./messages": true, "./internal/mutants": false} {
		if got, err := r.drawsRandom(t.Context(), pkg); err != nil || got != want {
			t.Errorf("drawsRandom(%s) = %v, %v; want %v", pkg, got, err, want)
		}
	}
}

// The mutants of the project must follow the code and its tests. This check needs no build, so
// every run of the tests includes it.
func TestListApplies(t *testing.T) {
	mutants, err := loadMutants("list")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			root := filepath.Join("..", "..")
			if _, err := m.apply(root); err != nil {
				t.Error(err)
			}
			if !testExists(t, filepath.Join(root, m.suite.pkg), m.suite.test) {
				t.Errorf("no test of %s is named %s", m.suite.pkg, m.suite.test)
			}
		})
	}
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// testExists reports whether a package declares a test that a pattern of -run matches. It
// ignores the pattern's subtests, whose names only a run knows.
func testExists(t *testing.T, dir, pattern string) bool {
	t.Helper()
	top, _, _ := strings.Cut(pattern, "/")
	name, err := regexp.Compile(top)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(testFunc.FindAllSubmatch(src, -1), func(m [][]byte) bool { return name.Match(m[1]) })
	})
}

func TestParseMutantRejects(t *testing.T) {
	const headers = "why\n\nfile: a.go\npackage: .\ntest: T\n"
	const change = "-- old --\na\n-- new --\nb\n"
	tests := []struct{ name, give, want string }{
		{"nothing", "", "0 sections"},
		{"no change", headers, "0 sections"},
		{"half a change", headers + "-- old --\na\n", "1 sections"},
		{"other sections", headers + "-- before --\na\n-- after --\nb\n", `"before"`},
		{"empty old", headers + "-- old --\n-- new --\nb\n", "`old` is empty"},
		{"no difference", headers + "-- old --\na\n-- new --\na\n", "the same"},
		{"no file", "why\npackage: .\ntest: T\n" + change, "`file:` is missing"},
		{"no package", "why\nfile: a.go\ntest: T\n" + change, "`package:` is missing"},
		{"no test", "why\nfile: a.go\npackage: .\n" + change, "`test:` is missing"},
		{"no reason", "file: a.go\npackage: .\ntest: T\n" + change, "describe the mistake"},
		{"many packages", "why\nfile: a.go\npackage: ./...\ntest: T\n" + change, "several"},
		{"file elsewhere", "why\nfile: ../a.go\npackage: .\ntest: T\n" + change, "not inside the module"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := parseMutant("m", txtar.Parse([]byte(tt.give)))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("parseMutant = %+v, %v; want an error with %q", m, err, tt.want)
			}
		})
	}
}

func TestParseMutant(t *testing.T) {
	const give = "The first line\nand the second.\n\nfile: a/b.go\npackage: ./a\ntest: ^TestB$\nflags: -race -cpu=4\n" +
		"-- old --\na\n-- new --\n-- old --\nb\n-- new --\nc\n"
	got, err := parseMutant("name", txtar.Parse([]byte(give)))
	if err != nil {
		t.Fatal(err)
	}
	want := mutant{
		name:  "name",
		why:   "The first line and the second.",
		file:  "a/b.go",
		suite: suite{pkg: "./a", test: "^TestB$", flags: "-race -cpu=4"},
		edits: []edit{{old: []byte("a\n"), new: []byte{}}, {old: []byte("b\n"), new: []byte("c\n")}},
	}
	if diff := gocmp.Diff(want, got, gocmp.AllowUnexported(mutant{}, suite{}, edit{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Flags of the tests go to a binary, all others to the compiler.
func TestTestFlags(t *testing.T) {
	tests := []struct {
		give string
		want []string
		ok   bool
	}{
		{"", nil, true},
		{"-count=10 -short", []string{"-test.count=10", "-test.short"}, true},
		{"-race -cpu=4", nil, false},
	}
	for _, tt := range tests {
		if got, ok := testFlags(tt.give); ok != tt.ok || !slices.Equal(got, tt.want) {
			t.Errorf("testFlags(%q) = %q, %v", tt.give, got, ok)
		}
	}
}

// The parts together are all mutants, each once.
func TestPartOf(t *testing.T) {
	all := []mutant{{name: "a"}, {name: "b"}, {name: "c"}, {name: "d"}, {name: "e"}}
	seen := map[string]int{}
	for _, part := range []string{"1/3", "2/3", "3/3"} {
		those, err := partOf(all, part)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range those {
			seen[m.name]++
		}
	}
	if want := map[string]int{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}; !maps.Equal(seen, want) {
		t.Errorf("tried: %v", seen)
	}
	for _, part := range []string{"", "0/3", "4/3", "1/0", "x"} {
		if _, err := partOf(all, part); err == nil {
			t.Errorf("%q is accepted as a part", part)
		}
	}
}

func TestEdit(t *testing.T) {
	tests := []struct{ name, src, old, new, want string }{
		{"first line", "a\nb\n", "a\n", "x\n", "x\nb\n"},
		{"last line", "a\nb\n", "b\n", "x\n", "a\nx\n"},
		{"deletion", "a\nb\nc\n", "b\n", "", "a\nc\n"},
		{"several lines", "a\nb\nc\n", "b\nc\n", "x\n", "a\nx\n"},
		{"part of a line", "\ta\nb\n", "a\n", "x\n", ""},
		{"twice", "a\na\n", "a\n", "x\n", ""},
		{"not there", "a\n", "b\n", "x\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := edit{old: []byte(tt.old), new: []byte(tt.new)}.apply([]byte(tt.src))
			if tt.want == "" {
				if !errors.Is(err, errNotApplicable) {
					t.Errorf("apply = %q, %v; want errNotApplicable", got, err)
				}
				return
			}
			if err != nil || string(got) != tt.want {
				t.Errorf("apply = %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}
