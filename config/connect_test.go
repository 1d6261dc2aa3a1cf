package config_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/config"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/flow"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/connector/shm"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

const threeConnectors = `
stages: [{stage_id: a, output_connectors: {to_stage_b: shm, to_stage_c: seg}}, {stage_id: b}, {stage_id: c}, {stage_id: d}]
connectors:
  shm: {name: SharedMemoryConnector, extra: {mode: ring}}
  seg: {name: SharedMemoryConnector, extra: {mode: segment, codec_chunk_frames: 25}}
edges: [{from: b, to: d}, {from: c, to: d}]
`

// types has one type, whose connectors share a ring, and lists what was opened.
func types(t *testing.T, opened *[]any) *connector.Registry {
	t.Helper()
	r, err := ring.New(ring.Options{Store: shmstore.Options{Memory: shmstore.Heap, ArenaBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	registry := new(connector.Registry)
	if err := registry.Register(connector.Type{
		Name:    config.SharedMemory,
		Options: []connector.Option{{Key: "mode", Kind: connector.Text, Default: "ring"}},
		Open: func(_ context.Context, c connector.Config) (connector.Transport, error) {
			*opened = append(*opened, c.Settings.Text("mode"))
			return r.End(), nil
		},
	}); err != nil {
		t.Fatal(err)
	}
	return registry
}

// TestConnect runs a pipeline of which one edge has a connector of its own.
func TestConnect(t *testing.T) {
	p, err := config.Parse("p.yaml", []byte(threeConnectors), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	echo := func(config.Work) (bus.StageSpec, error) {
		return bus.Stage("", func(_ *bus.Task, in string) (string, error) { return in, nil }), nil
	}
	pipeline, opts, err := p.Build(map[string]config.Factory{"a": echo, "b": echo, "c": echo, "d": echo})
	if err != nil {
		t.Fatal(err)
	}
	opts.Store = shmstore.Options{Memory: shmstore.Heap, ArenaBytes: 1 << 20}
	var opened []any
	if err := p.Connect(t.Context(), types(t, &opened), &pipeline); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]any{"segment"}, opened); diff != "" {
		t.Error(diff)
	}
	b, err := bus.Open(t.Context(), pipeline, opts)
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.Submit(t.Context(), "hello")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for d, err := range r.Results(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if !d.Bare() {
			n++
		}
	}
	for _, e := range b.Stats().Edges {
		carried := e.Connector != nil && e.Connector.Gets == 1
		if (e.From == "a" && e.To == "c") != carried {
			t.Errorf("%s -> %s: %+v", e.From, e.To, e.Connector)
		}
	}
	if err := b.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n != 2 {
		t.Errorf("%d results", n)
	}
}

func TestConnectFails(t *testing.T) {
	p, err := config.Parse("p.yaml", []byte(threeConnectors), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pipeline := bus.Pipeline{Edges: make([]bus.Edge, len(p.Edges))}
	err = p.Connect(t.Context(), new(connector.Registry), &pipeline)
	if !errors.Is(err, config.ErrBuild) || !errors.Is(err, connector.ErrUnknown) || !strings.Contains(err.Error(), "p.yaml:5:") {
		t.Errorf("connected without a type: %v", err)
	}
}

func TestPlan(t *testing.T) {
	p, err := config.Parse("p.yaml", []byte(threeConnectors), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var needs []string
	for _, n := range p.Plan().Needs("a") {
		needs = append(needs, n.Name+" as "+n.Role.String())
	}
	if diff := cmp.Diff([]string{"shm as sender", "seg as sender"}, needs); diff != "" {
		t.Error(diff)
	}
	if got := p.Plan().Needs("d"); len(got) != 2 || got[0].Role != flow.Receiver || got[0].Type != config.SharedMemory {
		t.Errorf("what d needs: %+v", got)
	}
}

// TestDropIn: the name that vLLM-Omni's files have for it is refused with the one
// that it has here.
func TestDropIn(t *testing.T) {
	_, err := config.Parse("p.yaml", []byte(strings.ReplaceAll(threeConnectors, "SharedMemoryConnector", "OmnibusConnector")), config.Options{})
	if err == nil || !strings.Contains(err.Error(), "p.yaml:4:") || !strings.Contains(err.Error(), "called SharedMemoryConnector") {
		t.Errorf("%v", err)
	}
}

func TestConnectorModes(t *testing.T) {
	for extra, want := range map[string]string{
		"{mode: rings}":    "mode of SharedMemoryConnector must be ring or segment",
		"{generation: 3}":  "generation of SharedMemoryConnector must be a whole number from 1 to 2",
		"{ttl: soon}":      "ttl of SharedMemoryConnector must be a number of seconds",
		"{timeout: -1}":    "timeout of SharedMemoryConnector must be a number of seconds above 0",
		"{timeout: 0}":     "timeout of SharedMemoryConnector must be a number of seconds above 0",
		"{timeout: 0.0}":   "timeout of SharedMemoryConnector must be a number of seconds above 0",
		"{timeout: 0s}":    "timeout of SharedMemoryConnector must be a number of seconds above 0",
		"{timeout: 1e-12}": "timeout of SharedMemoryConnector must be a number of seconds above 0",
		"{ttl: 1e300}":     "ttl of SharedMemoryConnector must be a number of seconds",
		"{ring_bytes: 1s}": "ring_bytes of SharedMemoryConnector must be a whole number",

		"{store: a}":                "store of SharedMemoryConnector is gone: leave it out, and attach both processes to one host, which keeps the values, or take mode segment",
		"{mode: segment, store: a}": "store of SharedMemoryConnector is gone",
		"{readers: 2}":              "readers of SharedMemoryConnector is gone: leave it out",
	} {
		_, err := config.Parse("p.yaml", []byte(strings.Replace(threeConnectors, "{mode: ring}", extra, 1)), config.Options{})
		if err == nil || !strings.Contains(err.Error(), "p.yaml:4:") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", extra, err, want)
		}
	}
	for _, good := range []string{"{mode: segment, generation: 1}", "{ttl: 30s, timeout: 1.5}", "{ttl: 0, timeout: 1ms}", "{mode: null}", "{mode: segment, store: null}"} {
		if _, err := config.Parse("p.yaml", []byte(strings.Replace(threeConnectors, "{mode: ring}", good, 1)), config.Options{}); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
}

// modelSettings are what the stages of vLLM-Omni read from a SharedMemoryConnector's extra.
var modelSettings = []string{
	"codec_streaming", "codec_chunk_frames", "codec_left_context_frames", "initial_codec_chunk_frames",
	"connector_get_sleep_s", "connector_get_max_wait", "connector_get_max_wait_first_chunk",
}

// TestOptionsOfSharedMemory: a file may say what the connector takes, and nothing
// else: neither knows the other.
func TestOptionsOfSharedMemory(t *testing.T) {
	want := slices.Clone(modelSettings)
	for _, o := range shm.Type().Options {
		want = append(want, o.Key)
		if o.Gone != "" {
			_, err := config.Parse("p.yaml", []byte(strings.Replace(threeConnectors, "{mode: ring}", "{"+o.Key+": 1}", 1)), config.Options{})
			if err == nil || !strings.Contains(err.Error(), o.Gone) {
				t.Errorf("%s: %v, want %q", o.Key, err, o.Gone)
			}
		}
		for text, value := range map[string]any{
			"ring": "ring", "segment": "segment", "rings": "rings", "1m": "1m", "-1s": "-1s", "true": true,
			"-1": -1, "0": 0, "1": 1, "2": 2, "3": 3, "65535": 65535, "65536": 65536, "1.5": 1.5, "[1]": []any{1},
		} {
			_, err := config.Parse("p.yaml", []byte(strings.Replace(threeConnectors, "{mode: ring}", "{"+o.Key+": "+text+"}", 1)), config.Options{})
			if _, refused := o.Read(value); (err == nil) != (refused == nil) {
				t.Errorf("%s: %s: the file: %v, the connector: %v", o.Key, text, err, refused)
			}
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, config.SharedMemoryKeys()); diff != "" {
		t.Error(diff)
	}
}
