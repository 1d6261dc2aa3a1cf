package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/omnibus-runtime/omnibus/internal/golden"
)

// somePort is the environment of the files under testdata.
var somePort = Options{LookupEnv: env(map[string]string{"PORT": "50051"})}

func mustLoad(t *testing.T, path string) *Pipeline {
	t.Helper()
	p, err := Load(filepath.FromSlash(path), somePort)
	if err != nil {
		t.Fatalf("Load:\n%v", err)
	}
	return p
}

func mustParse(t *testing.T, text string) *Pipeline {
	t.Helper()
	p, err := Parse("p.yaml", []byte(text), Options{})
	if err != nil {
		t.Fatalf("Parse:\n%v", err)
	}
	return p
}

// content leaves out what depends on where things stand in a file.
var content = cmp.Options{
	cmpopts.IgnoreTypes(Position{}),
	cmpopts.IgnoreFields(Pipeline{}, "File", "Notes"),
	cmpopts.EquateEmpty(),
}

func TestLoadGolden(t *testing.T) {
	for _, name := range []string{"speech_older", "diffusion"} {
		t.Run(name, func(t *testing.T) {
			p := mustLoad(t, "testdata/valid/"+name+".yaml")
			p.File = name + ".yaml"
			for i := range p.Notes {
				p.Notes[i].File = p.File
			}
			var got bytes.Buffer
			enc := json.NewEncoder(&got)
			enc.SetEscapeHTML(false)
			enc.SetIndent("", "  ")
			if err := enc.Encode(p); err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, "testdata/valid/"+name+".json", got.Bytes())
		})
	}
}

func TestShapesAgree(t *testing.T) {
	older := mustLoad(t, "testdata/valid/speech_older.yaml")
	newer := mustLoad(t, "testdata/valid/speech_newer.yaml")
	if diff := cmp.Diff(older, newer, content); diff != "" {
		t.Errorf("the shapes differ (-older +newer):\n%s", diff)
	}
}

func TestResolvedSettings(t *testing.T) {
	p := mustLoad(t, "testdata/valid/speech_older.yaml")
	talker := p.Stages[1]
	talker.Settings, talker.Pos = nil, Position{}
	want := Stage{
		ID: "1", Handler: "talk", Replicas: 2, MaxInflight: 4, State: StateRequest, Attempts: 3, Replay: true,
		Batch: Batch{Size: 8, Wait: 2 * time.Millisecond},
		Exec:  []string{"python3", "talker.py"}, Env: map[string]string{"CUDA_VISIBLE_DEVICES": "1"}, Cwd: "/srv/talker",
		Restart: RestartOnFailure, Grace: 5 * time.Second, StartTimeout: 2 * time.Minute,
	}
	if diff := cmp.Diff(want, talker); diff != "" {
		t.Errorf("talker (-want +got):\n%s", diff)
	}
	bus := Bus{
		RingBytes: 64 << 20, Slots: 1024, MaxRequests: 32, InlineBytes: 4096,
		Serializer: SerializerMsgpack, StallTimeout: 30 * time.Second, ExchangeTTL: 5 * time.Minute, Memory: MemoryShared,
	}
	if diff := cmp.Diff(bus, p.Bus); diff != "" {
		t.Errorf("bus (-want +got):\n%s", diff)
	}
	if got, ok := p.Edges[0].Connector.ThresholdBytes(); got != 65536 || !ok {
		t.Errorf("ThresholdBytes = %d, %v", got, ok)
	}
	if got, ok := p.Edges[1].Connector.ThresholdBytes(); got != 0 || ok {
		t.Errorf("ThresholdBytes of an automatic connector = %d, %v", got, ok)
	}
}

func TestSettingsKeepOrderAndTypes(t *testing.T) {
	p := mustParse(t, `
zeta: 1
alpha: [1, 2.5, true, null, "1", 0x1F, -3, 1e-5, 18446744073709551615]
stages:
  - z: {b: 1, a: {}}
    stage_id: 0
    y: |
      two
      lines
    x: ~
    1: int key
`)
	wantTop := Settings{
		{"zeta", int64(1)},
		{"alpha", []any{int64(1), 2.5, true, nil, "1", int64(31), int64(-3), 1e-5, uint64(18446744073709551615)}},
	}
	if diff := cmp.Diff(wantTop, p.Settings); diff != "" {
		t.Errorf("top (-want +got):\n%s", diff)
	}
	wantStage := Settings{
		{"z", Settings{{"b", int64(1)}, {"a", Settings{}}}},
		{"y", "two\nlines\n"},
		{"x", nil},
		{"1", "int key"},
	}
	if diff := cmp.Diff(wantStage, p.Stages[0].Settings); diff != "" {
		t.Errorf("stage (-want +got):\n%s", diff)
	}
	text, err := json.Marshal(p.Stages[0].Settings)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"z":{"b":1,"a":{}},"y":"two\nlines\n","x":null,"1":"int key"}`; string(text) != want {
		t.Errorf("JSON = %s, want %s", text, want)
	}
	if diff := cmp.Diff(map[string]any{"b": int64(1), "a": map[string]any{}}, p.Stages[0].Settings.Map()["z"]); diff != "" {
		t.Errorf("Map (-want +got):\n%s", diff)
	}
	if _, ok := p.Stages[0].Settings.Get("z", "b", "c"); ok {
		t.Error("Get went through a number")
	}
}

func TestEdgesComeFromThreePlaces(t *testing.T) {
	tests := []struct {
		name string
		text string
		want Edge
	}{
		{
			name: "source alone",
			text: "stages: [{stage_id: 0}, {stage_id: 1, engine_input_source: ['0']}]",
			want: Edge{Connector: Connector{Type: SharedMemory, Auto: true}},
		},
		{
			name: "listed, with the default window",
			text: "stages: [{stage_id: 0}, {stage_id: '1'}]\nruntime: {defaults: {window_size: 3}}\nedges: [{from: 0, to: 1}]",
			want: Edge{Connector: Connector{Type: SharedMemory, Auto: true}, WindowSize: 3},
		},
		{
			name: "listed, with its own window",
			text: "stages: [{stage_id: 0}, {stage_id: 1}]\nruntime: {defaults: {window_size: 3}}\nedges: [{from: '0', to: 1, window_size: -1}]",
			want: Edge{Connector: Connector{Type: SharedMemory, Auto: true}, WindowSize: Unbounded},
		},
		{
			name: "the sender's connector, in all three places",
			text: "stages: [{stage_id: 0, output_connectors: {to_stage_1: c}}, {stage_id: 1, engine_input_source: [0]}]\n" +
				"connectors: {c: {name: SharedMemoryConnector}}\nedges: [{from: 0, to: 1, window_size: 2}]",
			want: Edge{Connector: Connector{Name: "c", Type: SharedMemory}, WindowSize: 2},
		},
		{
			name: "the receiver's connector before the sender's",
			text: "stages: [{stage_id: 0, output_connectors: {to_stage_1: c}}, {stage_id: 1, input_connectors: {from_stage_0: d}}]\n" +
				"connectors: {c: {name: SharedMemoryConnector}, d: {name: SharedMemoryConnector}}",
			want: Edge{Connector: Connector{Name: "d", Type: SharedMemory}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := mustParse(t, tt.text)
			tt.want.From, tt.want.To = "0", "1"
			if diff := cmp.Diff([]Edge{tt.want}, p.Edges, content); diff != "" {
				t.Errorf("edges (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMaxInflight(t *testing.T) {
	const head = "runtime: {defaults: {max_inflight: 9}}\nedges: [{from: a, to: s, max_inflight: 7}, {from: b, to: s, max_inflight: 6}]\nstages: [{stage_id: a}, {stage_id: b}, "
	tests := []struct {
		name, stage string
		want        int
	}{
		{"omnibus first", "{stage_id: s, max_inflight: 3, runtime: {max_inflight: 2}, omnibus: {max_inflight: 1}}", 1},
		{"then the stage's runtime", "{stage_id: s, max_inflight: 3, runtime: {max_inflight: 2}}", 2},
		{"then the stage", "{stage_id: s, max_inflight: 3}", 3},
		{"then the smallest edge", "{stage_id: s}", 6},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := mustParse(t, head+tt.stage+"]")
			if got := p.Stages[2].MaxInflight; got != tt.want {
				t.Errorf("MaxInflight = %d, want %d", got, tt.want)
			}
			if got := p.Stages[0].MaxInflight; got != 9 {
				t.Errorf("MaxInflight of a stage without its own = %d, want the default 9", got)
			}
		})
	}
}

func TestOrderIsTopologicalAndStable(t *testing.T) {
	p := mustParse(t, "stages: [{stage_id: d, engine_input_source: [c, b]}, {stage_id: c, engine_input_source: [a]}, {stage_id: b, engine_input_source: [a]}, {stage_id: x}, {stage_id: a}]")
	var got []string
	for _, s := range p.Stages {
		got = append(got, s.ID)
	}
	if want := "x a c b d"; strings.Join(got, " ") != want {
		t.Errorf("order %v, want %s", got, want)
	}
	var edges []string
	for _, e := range p.Edges {
		edges = append(edges, e.From+e.To)
	}
	if want := "ac ab cd bd"; strings.Join(edges, " ") != want {
		t.Errorf("edges %v, want %s", edges, want)
	}
}

func TestPipelineName(t *testing.T) {
	const stages = "\nstages: [{stage_id: 0}]"
	tests := []struct{ name, file, text, want string }{
		{"of omnibus", "f.yaml", "pipeline: p\nomnibus: {name: o-1}" + stages, "o-1"},
		{"of the pipeline key", "f.yaml", "pipeline: 'p q'" + stages, "p-q"},
		{"of the file", "/x/my file.v2.yaml", stages, "my-file.v2"},
		{"of a file without letters", "..", stages, "pipeline"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Parse(tt.file, []byte(tt.text), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if p.Name != tt.want {
				t.Errorf("Name = %q, want %q", p.Name, tt.want)
			}
		})
	}
}

func TestAnchorsAndMergeKeys(t *testing.T) {
	p := mustParse(t, `
base: &base {a: 1, b: 2}
more: &more {b: 3, c: 4}
stages:
  - stage_id: 0
    args: {<<: [*base, *more], a: 9}
    same: *base
`)
	want := Settings{
		{"args", Settings{{"a", int64(9)}, {"b", int64(2)}, {"c", int64(4)}}},
		{"same", Settings{{"a", int64(1)}, {"b", int64(2)}}},
	}
	if diff := cmp.Diff(want, p.Stages[0].Settings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNotes(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{
			name: "a connector that this build cannot run",
			text: "connectors:\n  m: {name: MoriConnector}\nstages: [{stage_id: 0, output_connectors: {to_stage_1: m}}, {stage_id: 1, input_connectors: {from_stage_0: m}}, {stage_id: 2, input_connectors: {from_stage_1: m}}]",
			want: []string{"p.yaml:2:3: note: m (MoriConnector) is valid, but this build cannot run it: it moves data between hosts; place both stages on one host and use SharedMemoryConnector, or run the edge with vLLM-Omni"},
		},
		{
			name: "a connector that needs a device that this build does not drive",
			text: "connectors:\n  y: {name: YuanrongTransferEngineConnector, extra: {rpc_port: '50052', zmq_port: auto}}\nstages: [{stage_id: 0}, {stage_id: 1, input_connectors: {from_stage_0: y}}]",
			want: []string{"p.yaml:2:3: note: y (YuanrongTransferEngineConnector) is valid, but this build cannot run it: its engine reads through an NPU and libascendcl.so; use YuanrongConnector, whose values go through memory of the host, or SharedMemoryConnector within one host"},
		},
		{
			name: "settings of a deployment of vLLM-Omni",
			text: "active_stream_window: 4\nstages:\n- {stage_id: 0, num_replicas: 2}\n- {stage_id: 1, engine_input_source: [0], num_replicas: 1, runtime: {num_replicas: 3}}",
			want: []string{
				"p.yaml:1:23: note: active_stream_window is a setting of vLLM-Omni, and has no effect here: omnibus: {max_requests: N} bounds the requests that are under way",
				"p.yaml:3:31: note: num_replicas is a setting of vLLM-Omni, and has no effect here: say omnibus: {replicas: N}",
				"p.yaml:4:84: note: num_replicas is a setting of vLLM-Omni, and has no effect here: say omnibus: {replicas: N}",
			},
		},
		{
			name: "an unused connector",
			text: "connectors:\n  m: {name: SharedMemoryConnector}\nstages: [{stage_id: 0}]",
			want: []string{`p.yaml:2:3: note: no edge uses the connector "m"`},
		},
		{
			name: "settings of a model that are called as the bus's are",
			text: "env: {}\nstages:\n- {stage_id: 0, env: {}, max_inflight: 1, runtime: {env: {}, max_inflight: 1}, engine_args: {wait: 1, ring_bytes: 1}}",
		},
		{
			name: "a mistyped key of a connector",
			text: "connectors: {m: {name: SharedMemoryConnector, extra: {codec_chunk_frame: 1}}}\nstages: [{stage_id: 0}, {stage_id: 1, input_connectors: {from_stage_0: m}}]",
			want: []string{`p.yaml:1:55: note: "codec_chunk_frame" is kept for the stages; is "codec_chunk_frames" meant?`},
		},
		{
			name: "words that are booleans elsewhere",
			text: "stages:\n- stage_id: 0\n  a: no\n  b: 'no'\n",
			want: []string{"p.yaml:3:6: note: no is kept as text; PyYAML reads it as false: write that, or quote it"},
		},
		{
			name: "a stage without edges",
			text: "stages: [{stage_id: 0}, {stage_id: 1, engine_input_source: [0]}, {stage_id: 2}]",
			want: []string{"p.yaml:1:77: note: no edge leads to the stage 2 or away from it: vLLM-Omni takes edges that a file leaves out from the model's code, this build does not"},
		},
		{
			name: "a stage that is alone, beside a list of edges",
			text: "edges: [{from: 0, to: 1}]\nstages: [{stage_id: 0}, {stage_id: 1}, {stage_id: 2, omnibus: {alone: true}}]",
		},
		{
			name: "a stage whose edges are the caller's",
			text: "edges: [{from: 0, to: 1}, {from: caller, to: 2}]\nstages: [{stage_id: 0}, {stage_id: 1}, {stage_id: 2}]",
		},
		{
			name: "a list of connectors",
			text: "connectors: [{name: SharedMemoryConnector}]\nstages: [{stage_id: 0}, {stage_id: 1, engine_input_source: [0]}]",
			want: []string{"p.yaml:1:13: note: connectors is a list, which vLLM-Omni does not read: edges have their automatic connectors; write a map of names, such as shm: {name: SharedMemoryConnector}"},
		},
		{
			name: "ports as text",
			text: "connectors: {m: {name: MooncakeTransferEngineConnector, extra: {zmq_port: '50051'}}}\nstages: [{stage_id: 0}]",
			want: []string{`p.yaml:1:14: note: no edge uses the connector "m"`},
		},
		{
			name: "two definitions for one edge",
			text: "connectors: {a: {name: SharedMemoryConnector}, b: {name: SharedMemoryConnector}}\nstages:\n- {stage_id: 0, output_connectors: {to_stage_1: a}}\n- {stage_id: 1, input_connectors: {from_stage_0: b}}",
			want: []string{"p.yaml:4:36: note: the ends of the edge 0 -> 1 define their SharedMemoryConnector twice: the receiver's definition (line 4) counts"},
		},
		{
			name: "platforms",
			text: "platforms: {npu: {}, xpu: 1}\nstages: [{stage_id: 0}]",
			want: []string{"p.yaml:1:1: note: none of the platforms is chosen (npu, xpu): the file counts without them"},
		},
		{
			name: "few tensors of an edge that has no transport for them",
			text: two + "edges: [{from: a, to: b, omnibus: {min_bytes: 1MiB, tensor_transport: default}}]",
			want: []string{"p.yaml:2:9: note: min_bytes of the edge a -> b counts for nothing: its tensors all go through host memory, unless tensor_transport is cuda_ipc or cuda_ipc_pool"},
		},
		{
			name: "settings of a process without a process",
			text: "stages:\n- stage_id: 0\n  omnibus:\n    env: {A: b}\n    cwd: /",
			want: []string{"p.yaml:4:10: note: env has no effect without exec", "p.yaml:5:10: note: cwd has no effect without exec"},
		},
		{
			name: "a batch of a process",
			text: "stages:\n- {stage_id: 0, omnibus: {exec: [x], batch: {size: 8}}}\n- {stage_id: 1, engine_input_source: [0], omnibus: {attach: true, batch: {wait: 1s}}}\n- {stage_id: 2, engine_input_source: [1], omnibus: {batch: {size: 8}}}",
			want: []string{
				"p.yaml:2:45: note: batch has no effect with exec or attach: the process says by itself how many messages it takes together (in Python @stage(batch=8), in Go BatchSize)",
				"p.yaml:3:74: note: batch has no effect with exec or attach: the process says by itself how many messages it takes together (in Python @stage(batch=8), in Go BatchSize)",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, n := range mustParse(t, tt.text).Notes {
				got = append(got, n.String())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestFilesOfVLLMOmni: its own files are taken as they are, for each of their platforms.
func TestFilesOfVLLMOmni(t *testing.T) {
	wheel := os.Getenv("OMNIBUS_VLLM_OMNI")
	if wheel == "" {
		t.Skip("OMNIBUS_VLLM_OMNI is not set: the folder of an unpacked vllm-omni wheel is missing")
	}
	files, err := filepath.Glob(filepath.Join(wheel, "vllm_omni", "deploy", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%q, %v", files, err)
	}
	accepted := 0
	for _, file := range files {
		for _, platform := range []string{"", "cuda", "musa", "npu", "rocm", "xpu"} {
			_, err := Load(file, Options{Platform: platform})
			switch {
			case err == nil:
				accepted++
			case !strings.Contains(err.Error(), ": there is no platform ") && !strings.Contains(err.Error(), ": this is no pipeline file: "):
				t.Errorf("%s, platform %q: %v", filepath.Base(file), platform, err)
			}
		}
	}
	if accepted < len(files)-1 {
		t.Errorf("of %d files and their platforms, %d are accepted", len(files), accepted)
	}
}

func TestRunnable(t *testing.T) {
	if err := mustLoad(t, "testdata/valid/speech_older.yaml").Runnable(); err != nil {
		t.Errorf("shared memory everywhere: %v", err)
	}
	err := mustParse(t, "connectors: {m: {name: MoriConnector}}\nstages:\n- {stage_id: 0}\n- {stage_id: 1, input_connectors: {from_stage_0: m}}").Runnable()
	if !errors.Is(err, ErrNoTransport) {
		t.Fatalf("Runnable = %v, want ErrNoTransport", err)
	}
	var problem *Problem
	if !errors.As(err, &problem) || problem.Line != 4 {
		t.Errorf("Runnable = %v, want a Problem on line 4", err)
	}
	if !strings.Contains(err.Error(), "use SharedMemoryConnector") {
		t.Errorf("%q does not say what to do", err)
	}
}

func TestRunnableIgnoresUnusedConnectors(t *testing.T) {
	p := mustParse(t, "connectors: {m: {name: MoriConnector}}\nstages: [{stage_id: 0}]")
	if err := p.Runnable(); err != nil {
		t.Error(err)
	}
}

func TestConnectorFamilies(t *testing.T) {
	for _, name := range []string{
		"YuanrongTransferEngineConnector", "NixlNextConnector", "MoriConnector", "MoriTransferEngineConnector", "CudaIpcNextConnector", "MooncakeNextConnector",
	} {
		p := mustParse(t, "stages: [{stage_id: 0}, {stage_id: 1, input_connectors: {from_stage_0: {name: "+name+"}}}]")
		if err := p.Runnable(); !errors.Is(err, ErrNoTransport) {
			t.Errorf("%s: Runnable = %v", name, err)
		}
	}
	for _, name := range []string{"MooncakeConnector", "MooncakeStoreConnector", "MooncakeTransferEngineConnector", "NixlConnector", "YuanrongConnector", "CudaIpcConnector"} {
		p := mustParse(t, "stages: [{stage_id: 0}, {stage_id: 1, input_connectors: {from_stage_0: {name: "+name+"}}}]")
		if err := p.Runnable(); err != nil || len(p.Notes) > 0 {
			t.Errorf("%s: Runnable = %v, notes %v", name, err, p.Notes)
		}
	}
}

func TestLoadErrorsOfTheSystem(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(filepath.Join(dir, "none.yaml"), Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	var problems Problems
	if _, err := Load(dir, Options{}); err == nil || errors.As(err, &problems) {
		t.Errorf("directory: %v, want an error of the system", err)
	}
}

func TestProblemsAsErrors(t *testing.T) {
	_, err := Parse("p.yaml", []byte("stages: [{stage_id: x, final_output: 1}, {stage_id: x}]"), Options{})
	var problems Problems
	if !errors.As(err, &problems) || len(problems) != 2 {
		t.Fatalf("%T %v", err, err)
	}
	if !errors.Is(err, problems[1]) {
		t.Error("a problem cannot be found in the error")
	}
}
