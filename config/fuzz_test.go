package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// FuzzLoad checks what holds for any text: Parse ends without a panic, and
// gives either problems at places in the file, or a pipeline that is a DAG in
// topological order and can be written in every form. An editor that follows
// the schema has nothing against a file that is in order for all its platforms.
func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob("testdata/valid/*")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), false)
		f.Add(string(text), true)
	}
	for _, tt := range problemTests {
		f.Add(tt.text, false)
	}
	for _, text := range []string{"&", "*", "? ", "!", "|", "a: |", "<<: {}", "<<: *a", "&a : *a", "[&a , *a]", "{", "a: &b", "%YAML 1.2\n---\n", "k: >-\n", "- - ? -", "{&a k: v, *a : w}", "!!binary |\n x"} {
		f.Add(text, false)
	}
	s := compiled(f)
	f.Fuzz(func(t *testing.T, text string, asJSON bool) {
		name := "p.yaml"
		if asJSON {
			name = "p.json"
		}
		p, err := Parse(name, []byte(text), Options{})
		if err != nil {
			checkProblems(t, err)
			return
		}
		checkPipeline(t, p)
		if _, err := asEditor(t, s, []byte(text)); err != nil && forAllPlatforms(text) {
			t.Errorf("the schema refuses a good file: %v", err)
		}
	})
}

// forAllPlatforms says whether a file is in order with any of its platforms.
func forAllPlatforms(text string) bool {
	var c checker
	all := c.parse([]byte(text)).get(keyPlatforms)
	if all == nil {
		return true
	}
	return !slices.ContainsFunc(all.entries, func(e entry) bool {
		_, err := Parse("p.yaml", []byte(text), Options{Platform: e.key})
		return err != nil || e.key == "" // no name chooses it
	})
}

func checkProblems(t *testing.T, err error) {
	var problems Problems
	if !errors.As(err, &problems) || len(problems) == 0 || len(problems) > maxProblems+1 {
		t.Fatalf("%T with %d problems", err, len(problems))
	}
	for i, p := range problems {
		if p.Line < 1 || p.Column < 1 || p.Msg == "" {
			t.Errorf("a problem without a place or a message: %v", p)
		}
		if i > 0 && p.File == problems[i-1].File && cmp.Or(p.Line-problems[i-1].Line, p.Column-problems[i-1].Column) < 0 {
			t.Errorf("not sorted: %v", err)
		}
	}
}

func checkPipeline(t *testing.T, p *Pipeline) {
	if len(p.Stages) == 0 || p.Name == "" || p.Name != toName(p.Name) {
		t.Fatalf("%d stages, name %q", len(p.Stages), p.Name)
	}
	place := func(id string) int {
		return slices.IndexFunc(p.Stages, func(s Stage) bool { return s.ID == id })
	}
	for _, e := range p.Edges {
		if from, to := place(e.From), place(e.To); from < 0 || from >= to {
			t.Errorf("edge %s -> %s: places %d and %d", e.From, e.To, from, to)
		}
		if _, remote := family(e.Connector.Type); !remote && e.Connector.Type != SharedMemory {
			t.Errorf("edge %s -> %s has the connector type %q", e.From, e.To, e.Connector.Type)
		}
	}
	asJSON := func(out io.Writer) error { return json.NewEncoder(out).Encode(p) }
	for _, write := range []func(io.Writer) error{p.WriteText, p.WriteDOT, asJSON} {
		if err := write(io.Discard); err != nil {
			t.Error(err)
		}
	}
}

// FuzzAssemble checks the same of a file with everything that it may reach: one
// that it stands on, a platform, and a variable. None of them is outside the
// test.
func FuzzAssemble(f *testing.F) {
	f.Add("base_config: b\nstages: [{stage_id: 1, a: '${A}'}]", two, "npu", "x")
	f.Add("base_config: ${A}", two+"platforms: {npu: {stages: [{stage_id: a, omnibus: {replicas: 2}}]}}", "npu", "b")
	f.Add("base_config: b", "base_config: b", "", "")
	f.Add("x: &x {stage_id: 0, omnibus: {env: {A: '${A}'}}}\nbase_config: b\nstages: [*x]\nplatforms: {p: {stages: [*x]}}", "stages: [{stage_id: 0, omnibus: {env: {A: null}}}]", "p", "3")
	f.Add("stages: [{stage_id: '${A}', k: '\\${A}\\\\${oc.env:B,c}'}]\nplatforms: {'': {omnibus: {name: n}}, p: {connectors: null}}", "", "p", "0")
	f.Add("omnibus: {slots: null}\nbase_config: b", "omnibus: {slots: 1}\nstage_args: [1, {stage_id: 0}, {stage_id: 0}]", "", "")
	f.Fuzz(func(t *testing.T, top, base, platform, value string) {
		opened := 0
		opts := Options{
			Platform:  platform,
			LookupEnv: func(name string) (string, bool) { return value, name == "A" },
			Open: func(string) (io.ReadCloser, error) {
				opened++
				return io.NopCloser(strings.NewReader(base)), nil
			},
		}
		p, err := Parse("p.yaml", []byte(top), opts)
		if opened >= maxFiles {
			t.Errorf("%d files", opened)
		}
		if err != nil {
			checkProblems(t, err)
			return
		}
		checkPipeline(t, p)
	})
}
