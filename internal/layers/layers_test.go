package layers

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestImportsGoDown(t *testing.T)     { report(t, checkLayers(readTree(t), layers)) }
func TestForbiddenImports(t *testing.T)  { report(t, checkBans(readTree(t), bans)) }
func TestUnsafeHasItsFiles(t *testing.T) { report(t, checkUnsafe(readTree(t))) }

// What a package drags along is decided far below it, so it is read from the
// go command and not from the files.
func TestForbiddenDependencies(t *testing.T) {
	root := moduleRoot(t)
	for _, b := range closures {
		for _, from := range b.from {
			report(t, b.find(from, dependencies(t, root, "./"+from)))
		}
	}
}

func TestForbiddenModules(t *testing.T) {
	report(t, checkModules(requiredModules(t), strangers))
}

// requiredModules are those that go.mod names.
func requiredModules(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(moduleRoot(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	var modules []string
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(strings.TrimPrefix(line, "require ")); len(words) >= 2 && strings.HasPrefix(words[1], "v") {
			modules = append(modules, words[0])
		}
	}
	if len(modules) == 0 {
		t.Fatalf("go.mod names no module, or in a form that this test does not read:\n%s", text)
	}
	return modules
}

func dependencies(t *testing.T, root, pattern string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps", pattern)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, stderr.Bytes())
	}
	return strings.Fields(string(out))
}

func report(t *testing.T, broken []string) {
	t.Helper()
	for _, b := range broken {
		t.Error(b)
	}
}

// A rule that cannot fail protects nothing, so each is shown a repository that
// breaks it.
func TestRulesCanFail(t *testing.T) {
	of := func(path string, files ...file) []folder { return []folder{{path: path, files: files}} }
	imports := func(name string, paths ...string) file { return file{name: name, imports: paths} }

	tests := []struct {
		name string
		got  []string
		want string // part of the one message, or empty for none
	}{
		{"import upwards", checkLayers(of("shmstore", imports("a.go", module+"/bus")), layers), "shmstore/a.go imports bus"},
		{"import downwards", checkLayers(of("bus", imports("a.go", module+"/shmstore", "fmt")), layers), ""},
		{"import upwards in a test", checkLayers(of("shmstore", imports("a_test.go", module+"/bus")), layers), ""},
		{"leaf imports a layer", checkLayers(of("messages/sub", imports("a.go", module+"/codec")), layers), "nothing of this module"},
		{"example imports internal", checkLayers(of("examples/x", imports("a.go", module+"/internal/y")), layers), "examples/x/a.go imports internal/y"},
		{"a format under the bus", checkLayers(of("bus", imports("a.go", module+"/codec/proto")), layers), "bus/a.go imports codec/proto"},
		{"a format under codec", checkLayers(of("codec", imports("a.go", module+"/codec/proto")), layers), "codec/a.go imports codec/proto"},
		{"a format over codec", checkLayers(of("codec/omni", imports("a.go", module+"/codec")), layers), ""},
		{"a format over the messages", checkLayers(of("codec/proto", imports("a.go", module+"/messages")), layers), "codec/proto/a.go imports messages"},
		{"unknown part", checkLayers(of("util", imports("a.go")), layers), `no layer is known for "util"`},
		{"benchmarks over the bus", checkLayers(of("bench", imports("a.go", module+"/bus")), layers), ""},
		{"benchmarks under the configuration", checkLayers(of("config", imports("a.go", module+"/bench")), layers), "config/a.go imports bench"},
		{"benchmarks over the configuration", checkLayers(of("bench", imports("a.go", module+"/config")), layers), "bench/a.go imports config"},
		{"a part that is called alike", checkLayers(of("internal/bench", imports("a.go", module+"/bus")), layers), "nothing of this module"},
		{"the host over the bus", checkLayers(of("internal/host", imports("a.go", module+"/bus", module+"/internal/host/child")), layers), ""},
		{"the host under the bus", checkLayers(of("bus", imports("a.go", module+"/internal/host")), layers), "bus/a.go imports internal/host"},
		{"processes that know the bus", checkLayers(of("internal/host/child", imports("a.go", module+"/bus")), layers), "nothing of this module"},
		{"packets that know the bus", checkLayers(of("internal/peer", imports("a.go", module+"/bus")), layers), "only internal/wire, shmstore"},
		{"packets under the bus", checkLayers(of("bus", imports("a.go", module+"/internal/peer")), layers), "bus/a.go imports internal/peer"},
		{"packets under the host's end", checkLayers(of("bus/host", imports("a.go", module+"/internal/peer")), layers), ""},
		{"messages that know a socket", checkLayers(of("internal/wire", imports("a.go", module+"/internal/peer")), layers), "only messages"},
		{"sibling inside a part", checkLayers(of("internal/a", imports("a.go", module+"/internal/b")), layers), ""},

		{"protoactor in the bus", checkBans(of("bus", imports("a.go", "github.com/asynkron/protoactor-go/actor")), bans), "must not import"},
		{"protoactor in actors", checkBans(of("actors", imports("a.go", "github.com/asynkron/protoactor-go/actor")), bans), ""},
		{"protoactor in a test", checkBans(of("bus", imports("a_test.go", "github.com/asynkron/protoactor-go/actor")), bans), ""},
		{"a socket in the bus", checkBans(of("bus", imports("a.go", "net")), bans), "one process"},
		{"a system call in the bus", checkBans(of("bus", imports("a.go", "golang.org/x/sys/unix")), bans), "one process"},
		{"a socket at an end of a boundary", checkBans(of("bus/node", imports("a.go", "net", "golang.org/x/sys/unix")), bans), ""},
		{"packets in what the bus links", closures[0].find("bus", []string{module + "/internal/peer"}), "one process"},
		{"a web server in the store", checkBans(of("shmstore", imports("a.go", "net/http")), bans), "serves nothing"},
		{"a web server in the command", checkBans(of("cmd/omnibus", imports("a.go", "net/http")), bans), "serves nothing"},
		{"a web server in the host", checkBans(of("internal/host", imports("a.go", "net/http")), bans), ""},
		{"metrics beside the host", checkBans(of("internal/hosts", imports("a.go", "github.com/prometheus/client_golang/prometheus")), bans), "internal/host"},
		{"gRPC in go.mod", checkModules([]string{"google.golang.org/grpc", "google.golang.org/protobuf"}, strangers), "network stack"},
		{"a module that starts alike", checkModules([]string{"github.com/nats-iota/x"}, strangers), ""},
		{"a validator in config", checkBans(of("config", imports("a.go", "github.com/santhosh-tekuri/jsonschema/v6")), bans), "config checks files itself"},
		{"a validator in the tests of config", checkBans(of("config", imports("a_test.go", "github.com/santhosh-tekuri/jsonschema/v6")), bans), ""},
		{"a validator in other tests", checkBans(of("cmd/omnibus", imports("a_test.go", "github.com/santhosh-tekuri/jsonschema/v6")), bans), "config tests it"},
		{"files in the ring", checkBans(of("ringbuf", imports("a.go", "os")), bans), "any byte slice"},
		{"a name that starts alike", checkBans(of("ringbuf", imports("a.go", "oswald")), bans), ""},
		{"testify", checkBans(of("codec", imports("a_test.go", "github.com/stretchr/testify/require")), bans), "go-cmp"},

		{"unsafe anywhere", checkUnsafe(of("codec", imports("a.go", "unsafe"))), "x_unsafe.go"},
		{"unsafe in its file", checkUnsafe(of("codec", imports("a_unsafe.go", "unsafe"))), ""},
		{"unsafe in its file of one system", checkUnsafe(of("codec", imports("a_unsafe_linux.go", "unsafe"))), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			switch {
			case tt.want == "" && len(tt.got) > 0:
				t.Errorf("got %q, want nothing", tt.got)
			case tt.want != "" && (len(tt.got) != 1 || !strings.Contains(tt.got[0], tt.want)):
				t.Errorf("got %q, want one message with %q", tt.got, tt.want)
			}
		})
	}
}

func TestParseFile(t *testing.T) {
	const src = "// Package p is documented.\npackage p\n\nimport (\n\t\"fmt\"\n\tx \"os\"\n)\n\nfunc TestX() { fmt.Println(x.Args) }\n"
	tests := []struct {
		name string
		src  string
		want file
	}{
		{"p_test.go", src, file{imports: []string{"fmt", "os"}}},
		{"q.go", "// Code generated by hand. DO NOT EDIT.\n\npackage q\n", file{generated: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseFile(tt.name, []byte(tt.src))
			if err != nil {
				t.Fatal(err)
			}
			tt.want.name = tt.name
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(file{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
