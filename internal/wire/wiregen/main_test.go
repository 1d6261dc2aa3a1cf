package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/golden"
)

// TestFilesAreCurrent compares the files with the output of the generator.
func TestFilesAreCurrent(t *testing.T) {
	made, err := outputs("..")
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range made {
		golden.Compare(t, path, text)
	}
}

// constants are those of package wire that a table needs.
const constants = `package wire
const Version, Magic, MaxName, MaxText, MaxInline, MaxState = 1, 2, 200, 4096, 1 << 15, 512
type Policy uint8
const PolicyBlock, PolicyFail Policy = 1, 2
type Empty uint8
`

func tableOf(t *testing.T, source string) (*table, error) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "table.go", constants+source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return newTable(fset, []*ast.File{f})
}

func TestTable(t *testing.T) {
	made, err := tableOf(t, `
// Say says.
//
//wire:message 7 to a peer; two descriptors: one, and another
type Say struct {
	TaskID uint32 `+"`wire:\"magic,reserved=3\"`"+` // of the task
	// 1 block,
	// 2 fail
	Policy Policy
	State  string `+"`wire:\"most=MaxState\"`"+`
	Places []Place
}

//wire:message 2 both
type Bye struct{}

//wire:part
type Place struct { At [3]byte; Text string `+"`wire:\"text\"`"+` }
`)
	if err != nil {
		t.Fatal(err)
	}
	if len(made.messages) != 2 || len(made.parts) != 1 || made.messages[0].name != "bye" {
		t.Fatalf("messages %v, parts %v", made.messages, made.parts)
	}
	say, place := made.messages[1], made.parts[0]
	if say.direction != "to a peer" || say.descriptors != 2 || say.kind != 7 || say.doc != "Say says.\n" {
		t.Errorf("say is %+v", say)
	}
	want := []field{
		{form: magic, name: "magic", size: 8, doc: "`0x2`, the bytes `02 00 00 00 00 00 00 00`"},
		{form: number, goName: "TaskID", name: "task_id", goType: "uint32", size: 4, doc: "of the task"},
		{form: zeros, size: 3},
		{form: enum, goName: "Policy", name: "policy", goType: "Policy", size: 1, least: 1, most: 2, doc: "1 block, 2 fail"},
		{form: str, goName: "State", name: "state", goType: "string", most: 512, bound: "MaxState"},
		{form: list, goName: "Places", name: "places", goType: "[]Place", of: place},
	}
	for i, f := range say.fields {
		if f != want[i] {
			t.Errorf("field %d is %+v, want %+v", i, f, want[i])
		}
	}
	if got := place.least(); got != 5 {
		t.Errorf("a place has at least %d bytes, want 5", got)
	}
}

func TestTableRefuses(t *testing.T) {
	field := func(f string) string { return "//wire:message 1 both\ntype A struct {\n" + f + "\n}" }
	for name, tt := range map[string]struct{ source, want string }{
		"direction":       {"//wire:message 1 to the moon\ntype A struct{}", "A: //wire:message 1 to the moon: want"},
		"kind":            {"//wire:message 65536 both\ntype A struct{}", "A: kind 65536"},
		"kind twice":      {"//wire:message 1 both\ntype A struct{}\n\n//wire:message 1 both\ntype B struct{}", "A and B both have kind 1"},
		"no struct":       {"//wire:message 1 both\ntype A int", "A: not a struct"},
		"type":            {field("F float64"), "A.F: no field is written as float64"},
		"undescribed":     {field("F Policy // 1 block"), "A.F: the comment does not say what 2 is, PolicyFail"},
		"list":            {field("F []Policy"), "A.F: no field is written as []Policy"},
		"no constants":    {field("F Empty"), "A.F: the type Empty has no constants"},
		"two at once":     {field("F, G uint8"), "A.a field is embedded"},
		"bytes":           {field("F []byte"), "A.F: bytes without a bound"},
		"constant":        {field("F []byte `wire:\"most=MaxMost\"`"), "A.F: package wire has no constant MaxMost"},
		"tag":             {field("F uint8 `wire:\"text\"`"), "A.F: the tag \"text\" says nothing of a uint8"},
		"reserved":        {field("F uint8 `wire:\"reserved=0\"`"), "A.F: reserved=0"},
		"bounds":          {field("F uint8 `wire:\"0..x\"`"), "A.F: "},
		"bounds of a u16": {field("F uint16 `wire:\"0..1\"`"), "A.F: the tag \"0..1\" says nothing"},
	} {
		if _, err := tableOf(t, tt.source); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}
