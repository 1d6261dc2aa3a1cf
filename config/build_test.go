package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/config"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

const threeStages = `
omnibus: {name: talk, ring_bytes: 8MiB, memory: heap, max_requests: 4}
stages:
  - {stage_id: thinker, voice: deep, omnibus: {max_inflight: 2}}
  - {stage_id: talker, omnibus: {handler: loud, replicas: 2, state: none, attempts: 3}}
  - {stage_id: vocoder, input_connectors: {from_stage_talker: shm}}
connectors:
  shm: {name: SharedMemoryConnector, extra: {codec_chunk_frames: 25}}
edges:
  - {from: thinker, to: talker, window_size: 4}
  - {from: talker, to: vocoder, window_size: -1, omnibus: {policy: fail, window_bytes: 64KiB}}
`

// TestBuildRuns builds a bus out of a file and sends a request through it.
func TestBuildRuns(t *testing.T) {
	p, err := config.Parse("talk.yaml", []byte(threeStages), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	stage := func(f func(string) string) config.Factory {
		return func(w config.Work) (bus.StageSpec, error) {
			voice, _ := w.Stage.Settings.Get("voice")
			frames := any(nil)
			if len(w.In) > 0 {
				frames, _ = w.In[0].Connector.Extra.Get("codec_chunk_frames")
			}
			seen = append(seen, fmt.Sprint(w.Stage.ID, " ", voice, " ", frames, " ", len(w.Out)))
			return bus.Stage("", func(_ *bus.Task, in string) (string, error) { return f(in), nil }), nil
		}
	}
	pipeline, opts, err := p.Build(map[string]config.Factory{
		"thinker": stage(func(s string) string { return s + "!" }),
		"loud":    stage(strings.ToUpper),
		"vocoder": stage(func(s string) string { return "<" + s + ">" }),
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"thinker deep <nil> 1", "talker <nil> <nil> 1", "vocoder <nil> 25 0"}, seen); diff != "" {
		t.Error(diff)
	}
	b, err := bus.Open(t.Context(), pipeline, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	r, err := b.Submit(t.Context(), "hey")
	if err != nil {
		t.Fatal(err)
	}
	for d, err := range r.Results(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if got, err := bus.Result[string](d); err != nil || got != "<HEY!>" {
			t.Errorf("got %q, %v", got, err)
		}
	}
	s := b.Stats()
	if e := s.Edges[0]; e.Window != 4 || s.Edges[1].Window != bus.Unbounded || s.Edges[1].WindowBytes != 64<<10 {
		t.Errorf("windows: %+v", s.Edges)
	}
	if st := s.Stages[0]; st.Slots != 2 || s.Store.ArenaBytes != 8<<20 {
		t.Errorf("stage %+v, store %+v", st, s.Store)
	}
}

// TestBuildTensors: what a file says of tensors reaches the bus.
func TestBuildTensors(t *testing.T) {
	p, err := config.Parse("tensors.yaml", []byte(`
stages:
  - {stage_id: a, output_connectors: {to_stage_e: gpu, to_stage_f: pool, to_stage_g: pool}}
  - {stage_id: b}
  - {stage_id: c}
  - {stage_id: d}
  - {stage_id: e}
  - {stage_id: f}
  - {stage_id: g}
connectors:
  gpu: {name: CudaIpcConnector}
  pool: {name: CudaIpcConnector, extra: {tensor_transport: cuda_ipc_pool, min_bytes: 4096}}
edges:
  - {from: a, to: g, omnibus: {tensor_transport: cuda_ipc_pool, min_bytes: 4 KiB}}
  - {from: a, to: b, omnibus: {tensor_transport: cuda_ipc_pool, min_bytes: 64KiB}}
  - {from: b, to: c, omnibus: {tensor_transport: cuda_ipc, min_bytes: 0}}
  - {from: c, to: d, omnibus: {tensor_transport: cuda_ipc_pool, min_bytes: 0 KiB}}
  - {from: a, to: d}
  - {from: b, to: d, omnibus: {tensor_transport: default}}
`), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	echo := func(config.Work) (bus.StageSpec, error) {
		return bus.Stage("", func(_ *bus.Task, in string) (string, error) { return in, nil }), nil
	}
	pipeline, _, err := p.Build(map[string]config.Factory{"a": echo, "b": echo, "c": echo, "d": echo, "e": echo, "f": echo, "g": echo})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Connect(t.Context(), new(connector.Registry), &pipeline); err != nil { // nothing is opened
		t.Error(err)
	}
	got := make(map[string]string)
	for _, e := range pipeline.Edges {
		got[e.From+e.To] = fmt.Sprint(e.Tensors, " ", e.TensorMinBytes)
	}
	want := map[string]string{"ab": "cuda_ipc_pool 65536", "bc": "cuda_ipc 0", "cd": "cuda_ipc_pool 0", "ad": "default 0", "bd": "default 0", "ae": "cuda_ipc 0", "af": "cuda_ipc_pool 4096", "ag": "cuda_ipc_pool 4096"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBuildReportsEverything(t *testing.T) {
	p, err := config.Parse("bad.yaml", []byte(`
stages:
  - {stage_id: a}
  - {stage_id: b, omnibus: {exec: [./model]}}
  - {stage_id: c, omnibus: {handler: broken}, input_connectors: {from_stage_b: far}}
connectors:
  far: {name: MoriConnector}
edges:
  - {from: a, to: b}
  - {from: b, to: c}
`), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = p.Build(map[string]config.Factory{
		"broken": func(config.Work) (bus.StageSpec, error) { return bus.StageSpec{}, errors.New("no model") },
	})
	if !errors.Is(err, config.ErrBuild) || !errors.Is(err, config.ErrNoTransport) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		`bad.yaml:3:16: stage a: there is no handler "a"`,
		"stage b: it is a process of its own",
		`stage c: handler "broken": no model`,
		"MoriConnector",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("missing %q in:\n%v", want, err)
		}
	}
}

// TestBuildHost: stages with processes become remote, and the others need
// handlers.
func TestBuildHost(t *testing.T) {
	p, err := config.Parse("host.yaml", []byte(`
stages:
  - {stage_id: a}
  - {stage_id: b, omnibus: {exec: [./model], replicas: 2, state: none, routing: round-robin, unordered: true, batch: {size: 16}}}
  - {stage_id: c, omnibus: {attach: true, join: true, replay: true}}
edges:
  - {from: a, to: b}
  - {from: a, to: c}
  - {from: b, to: c}
`), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	echo := func(config.Work) (bus.StageSpec, error) {
		return bus.Stage("", func(_ *bus.Task, in string) (string, error) { return in, nil }), nil
	}
	pipeline, opts, err := p.BuildHost(map[string]config.Factory{"a": echo})
	if err != nil {
		t.Fatal(err)
	}
	if opts.Store.Memory != shmstore.Shared {
		t.Errorf("the store is in %v memory", opts.Store.Memory)
	}
	if st := pipeline.Stages[0]; st.Handle == nil || st.Remote != nil {
		t.Errorf("stage a: %+v", st)
	}
	want := []bus.StageSpec{
		{Name: "b", Replicas: 2, State: bus.StateNone, BatchSize: 16, Remote: &bus.Remote{Routing: bus.RoundRobin, Batch: 16}},
		{Name: "c", Replay: true, Remote: &bus.Remote{Join: true}},
	}
	if diff := cmp.Diff(want, pipeline.Stages[1:], cmpopts.IgnoreUnexported(bus.StageSpec{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	_, _, err = p.BuildHost(nil)
	if !errors.Is(err, config.ErrBuild) || !strings.Contains(err.Error(), `host.yaml:3:16: stage a: nothing does its work: add omnibus: {exec: ["python3", "a.py"]}`) {
		t.Errorf("without a handler: %v", err)
	}
}

func TestPathsStartAtTheFile(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ file, path, want string }{
		{"/etc/talk/p.yaml", "model.py", "/etc/talk/model.py"},
		{"/etc/talk/p.yaml", "../model.py", "/etc/model.py"},
		{"/etc/talk/p.yaml", "/opt/model.py", "/opt/model.py"},
		{"talk/p.yaml", "model.py", filepath.Join(wd, "talk", "model.py")},
		{"p.yaml", ".", wd},
	} {
		got, err := (&config.Pipeline{File: tt.file}).Path(tt.path)
		if err != nil || filepath.ToSlash(got) != filepath.ToSlash(tt.want) {
			t.Errorf("%s in %s: got %s, %v, want %s", tt.path, tt.file, got, err, tt.want)
		}
	}
}

// TestFinalOutputOfAMiddleStage: what it makes goes to the caller too.
func TestFinalOutputOfAMiddleStage(t *testing.T) {
	p, err := config.Parse("final.yaml", []byte(`
stages:
  - {stage_id: thinker, final_output: true, final_output_type: text}
  - {stage_id: vocoder, final_output: true, final_output_type: audio}
edges:
  - {from: thinker, to: vocoder}
`), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	echo := func(config.Work) (bus.StageSpec, error) {
		return bus.Stage("", func(_ *bus.Task, in string) (string, error) { return in, nil }), nil
	}
	pipeline, _, err := p.Build(map[string]config.Factory{"thinker": echo, "vocoder": echo})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]bus.Edge{{From: "thinker", To: "vocoder"}, {From: "thinker"}}, pipeline.Edges); diff != "" {
		t.Error(diff)
	}
}
