package config

import (
	"bytes"
	"errors"
	"os/exec"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/golden"
)

var graphTests = []struct{ name, text string }{
	{"single", "omnibus: {name: single}\nstages: [{stage_id: 0, final_output: true}]"},
	{
		"linear",
		`
omnibus: {name: linear}
stage_args:
  - {stage_id: 0, engine_args: {model_stage: thinker}, output_connectors: {to_stage_1: shm}, final_output: true, final_output_type: text}
  - {stage_id: 1, engine_args: {model_stage: talker}, omnibus: {replicas: 2, exec: [talker]}, input_connectors: {from_stage_0: shm}}
  - {stage_id: 2, engine_args: {model_stage: code2wav}, engine_input_source: [1], final_output: true, final_output_type: audio}
runtime:
  defaults: {window_size: -1, max_inflight: 1}
  connectors: {shm: {name: SharedMemoryConnector}}
  edges: [{from: 0, to: 1, window_size: 16, omnibus: {window_bytes: 8MiB, policy: fail}}]
`,
	},
	{
		"fan_out",
		`
omnibus: {name: fan-out}
stages: [{stage_id: source}, {stage_id: a}, {stage_id: long_name}, {stage_id: c, omnibus: {attach: true}}]
connectors: {rdma: {name: MooncakeTransferEngineConnector}}
edges:
  - {from: source, to: a, window_size: 4}
  - {from: source, to: long_name, window_size: 4, omnibus: {window_bytes: 1000, policy: drop-oldest}}
  - {from: source, to: c}
`,
	},
	{
		"fan_in",
		`
omnibus: {name: fan-in}
stages:
  - {stage_id: audio}
  - {stage_id: image}
  - {stage_id: text}
  - {stage_id: aggregate, engine_input_source: [image, audio, text], omnibus: {join: true}}
  - {stage_id: thinker, engine_input_source: [aggregate, text], final_output: true}
`,
	},
	{
		"wide",
		`
omnibus: {name: wide}
stages: [{stage_id: 思考者}, {stage_id: talker, omnibus: {attach: true}}, {stage_id: 声, final_output: true}]
edges:
  - {from: 思考者, to: talker, window_size: 4}
  - {from: 思考者, to: 声, window_size: 8}
`,
	},
	{
		"escapes",
		`
stages:
  - {stage_id: 'a"b\c', engine_args: {model_stage: "x\ny"}}
  - {stage_id: 'digraph { -- }', input_connectors: {'from_stage_a"b\c': 'c;"d'}, omnibus: {handler: "ü"}}
connectors: {'c;"d': {name: SharedMemoryConnector}}
`,
	},
}

func TestGraphGolden(t *testing.T) {
	for _, tt := range graphTests {
		t.Run(tt.name, func(t *testing.T) {
			p := mustParse(t, tt.text)
			var text, dot bytes.Buffer
			if err := p.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if err := p.WriteDOT(&dot); err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, "testdata/graph/"+tt.name+".txt", text.Bytes())
			golden.Compare(t, "testdata/graph/"+tt.name+".dot", dot.Bytes())
		})
	}
}

// TestDOTIsAccepted asks Graphviz itself.
func TestDOTIsAccepted(t *testing.T) {
	graphviz, err := exec.LookPath("dot")
	if err != nil {
		t.Skip("Graphviz is not installed")
	}
	for _, tt := range graphTests {
		var dot bytes.Buffer
		if err := mustParse(t, tt.text).WriteDOT(&dot); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), graphviz, "-Tplain")
		cmd.Stdin = &dot
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", tt.name, err, out)
		}
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestGraphReportsTheWritersError(t *testing.T) {
	p := mustParse(t, graphTests[0].text)
	want := errors.New("disk full")
	if err := p.WriteText(failingWriter{want}); !errors.Is(err, want) {
		t.Errorf("WriteText = %v", err)
	}
	if err := p.WriteDOT(failingWriter{want}); !errors.Is(err, want) {
		t.Errorf("WriteDOT = %v", err)
	}
}
