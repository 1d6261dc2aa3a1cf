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
	"github.com/omnibus-runtime/omnibus/connector/bridge"
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

// TestConnectorsOfOtherPrograms: a name that ends with a type of vLLM-Omni means that type.
func TestConnectorsOfOtherPrograms(t *testing.T) {
	for name, want := range map[string]string{
		"DynamoOmniNixlConnector": "NixlConnector", "XSharedMemoryConnector": "SharedMemoryConnector", "SharedMemoryConector": "SharedMemoryConnector",
	} {
		_, err := config.Parse("p.yaml", []byte("stages: [{stage_id: 0}]\nconnectors: {m: {name: "+name+"}}"), config.Options{})
		if err == nil || !strings.HasSuffix(err.Error(), "the nearest is "+want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
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
		if o.Removed != "" {
			_, err := config.Parse("p.yaml", []byte(strings.Replace(threeConnectors, "{mode: ring}", "{"+o.Key+": 1}", 1)), config.Options{})
			if err == nil || !strings.Contains(err.Error(), o.Removed) {
				t.Errorf("%s: %v, want %q", o.Key, err, o.Removed)
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

// TestLargestValueOfConnectors: the bounds of an edge are those of its connector, too.
func TestLargestValueOfConnectors(t *testing.T) {
	defaults := make(map[string]int64)
	for _, typ := range bridge.Types() {
		for _, option := range typ.Options {
			if option.Key == "localbuf" || option.Key == "memory_pool_size" {
				defaults[typ.Name] = option.Default.(int64)
			}
		}
	}
	if len(defaults) != 4 {
		t.Fatalf("the types with a bound are %v", defaults)
	}
	for name, most := range defaults {
		for extra, want := range map[string]int64{"": most, ", extra: {localbuf: 5000000, memory_pool_size: 5000000}": 5_000_000} {
			text := "stages: [{stage_id: a, omnibus: {exec: [x]}, output_connectors: {to_stage_b: m}}, {stage_id: b, omnibus: {exec: [x]}}]\n" +
				"connectors: {m: {name: " + name + extra + "}}\nomnibus: {large_bytes: 4GiB}"
			p, err := config.Parse("p.yaml", []byte(text), config.Options{})
			if err != nil {
				t.Fatal(err)
			}
			bounds, err := p.CheckHost()
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range bounds {
				if own := b.From == "a"; own && (b.Largest != want || b.Window > want) || !own && b.Largest != 4<<30 {
					t.Errorf("%s%s: %+v, want %d on the edge of the connector", name, extra, b, want)
				}
			}
		}
	}
}

// TestTwoSidesOfAStage: a worker of vLLM-Omni has one connector for both directions.
func TestTwoSidesOfAStage(t *testing.T) {
	for name, test := range map[string]struct{ first, second, want string }{
		"switched to the exchange":     {"name: OmnibusConnector", "name: SharedMemoryConnector", "so the stage 2 does not find the values"},
		"switched, and an automatic":   {"name: OmnibusConnector, extra: {mode: ring}", "", "so the stage 2 does not find the values"},
		"segments":                     {"name: OmnibusConnector, extra: {mode: segment}", "name: SharedMemoryConnector", ""},
		"both":                         {"name: OmnibusConnector", "name: OmnibusConnector", ""},
		"two modes":                    {"name: OmnibusConnector", "name: OmnibusConnector, extra: {mode: segment}", "so the stage 2 does not find the values"},
		"segments and the exchange":    {"name: OmnibusConnector, extra: {mode: segment}", "name: OmnibusConnector", ""},
		"two exchanges":                {"name: OmnibusConnector, extra: {bus: a}", "name: OmnibusConnector, extra: {bus: b}", "so the stage 2 does not find the values"},
		"one exchange":                 {"name: OmnibusConnector, extra: {bus: a}", "name: OmnibusConnector, extra: {bus: a, mode: ring}", ""},
		"segments and an engine":       {"name: OmnibusConnector, extra: {mode: segment}", "name: OmnibusConnector, extra: {mode: mooncake}", "so the stage 2 does not find the values"},
		"no modes at all":              {"name: OmnibusConnector, extra: {mode: [a], bus: [b]}", "name: OmnibusConnector, extra: {mode: [c], bus: [b]}", "so the stage 2 does not find the values"},
		"the second":                   {"name: SharedMemoryConnector", "name: OmnibusConnector", ""},
		"segments elsewhere":           {"name: OmnibusConnector, extra: {mode: segment, dir: /dev/shm/x}", "name: SharedMemoryConnector", "so the stage 2 does not find the values"},
		"segments there by name":       {"name: OmnibusConnector, extra: {mode: segment, dir: /dev/shm/}", "name: SharedMemoryConnector", ""},
		"segments and NIXL":            {"name: OmnibusConnector, extra: {mode: segment}", "name: NixlConnector", "so the stage 2 does not find the values"},
		"the second, by an engine":     {"name: SharedMemoryConnector", "name: OmnibusConnector, extra: {mode: nixl}", "so the stage 2 does not find the values"},
		"an engine without a port":     {"name: OmnibusConnector, extra: {mode: nixl, outgoing: {}}", "name: OmnibusConnector, extra: {mode: nixl}", "give this connector outgoing: {zmq_port: N}"},
		"an engine":                    {"name: OmnibusConnector, extra: {mode: nixl}", "name: OmnibusConnector, extra: {mode: nixl}", "give this connector outgoing: {zmq_port: N}"},
		"an engine, and its other end": {"name: OmnibusConnector, extra: {mode: nixl, outgoing: {zmq_port: 5}}", "name: OmnibusConnector, extra: {mode: nixl}", ""},
	} {
		second := "b"
		if test.second == "" {
			second = "{}"
		}
		text := "stages:\n- {stage_id: 0, output_connectors: {to_stage_1: a}}\n- {stage_id: 1, engine_input_source: [0]}\n" +
			"- {stage_id: 2, engine_input_source: [1], input_connectors: {from_stage_1: " + second + "}}\n" +
			"connectors:\n  a: {" + test.first + "}\n  b: {" + test.second + "}\n"
		if test.second == "" {
			text = strings.ReplaceAll(strings.ReplaceAll(text, ", input_connectors: {from_stage_1: {}}", ""), "  b: {}\n", "")
		}
		_, err := config.Parse("p.yaml", []byte(text), config.Options{})
		if err == nil || strings.Contains(err.Error(), "the stage 1 receives") != (test.want != "") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
