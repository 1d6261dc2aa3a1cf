package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/config"
)

const callerFile = `
omnibus: {ring_bytes: 32MiB, large_bytes: 1GiB}
stages:
  - {stage_id: a, omnibus: {attach: true}}
  - {stage_id: b, final_output: true, omnibus: {attach: true}}
  - {stage_id: c, omnibus: {attach: true}}
edges:
  - {from: caller, to: a, window_size: 3, omnibus: {window_bytes: 64KiB}}
  - {from: a, to: b}
  - {from: b, to: c}
  - {from: b, to: caller, omnibus: {policy: drop-oldest, window_bytes: 128KiB}}
  - {from: c, to: caller, omnibus: {window_bytes: 256KiB}}
`

// TestCallerEdges: a file names the edges from and to the caller, and their settings reach
// the bus, whose bounds say what each edge takes.
func TestCallerEdges(t *testing.T) {
	p, err := config.Parse("p.yaml", []byte(callerFile), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	spec, opts, err := p.BuildHost(nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bus.Edge{}
	for _, e := range spec.Edges {
		got[e.From+"->"+e.To] = e
	}
	want := map[string]bus.Edge{
		"->a":  {To: "a", Window: 3, WindowBytes: 64 << 10},
		"a->b": {From: "a", To: "b"},
		"b->c": {From: "b", To: "c"},
		"b->":  {From: "b", WindowBytes: 128 << 10, Policy: bus.DropOldest},
		"c->":  {From: "c", WindowBytes: 256 << 10},
	}
	if diff := cmp.Diff(want, got, cmp.FilterPath(func(p cmp.Path) bool {
		return p.Last().String() == ".Connector"
	}, cmp.Ignore())); diff != "" || len(spec.Edges) != len(want) {
		t.Errorf("%d edges: %s", len(spec.Edges), diff)
	}
	if opts.Store.MaxLargeBytes != 1<<30 {
		t.Errorf("MaxLargeBytes is %d", opts.Store.MaxLargeBytes)
	}
	bounds, err := p.CheckHost()
	if err != nil || len(bounds) != len(want) {
		t.Fatalf("%d bounds: %v", len(bounds), err)
	}
	for _, b := range bounds {
		if e := want[b.From+"->"+b.To]; e.WindowBytes != 0 && b.Window != e.WindowBytes || b.Largest != 1<<30 {
			t.Errorf("%+v", b)
		}
	}
}

func TestBadCallerEdges(t *testing.T) {
	two := "stages: [{stage_id: a}, {stage_id: b}]\nedges:\n- {from: a, to: b}\n"
	for edge, says := range map[string]string{
		"{from: caller, to: b}":                          "the stage b gets its input from other stages (such as a): it has no edge from the caller",
		"{from: a, to: caller}":                          "the output of the stage a goes to other stages (such as b): say final_output: true for it to go to the caller, too",
		"{from: caller, to: x}":                          "unknown stage x",
		"{from: caller, to: caller}":                     "an edge leads from the caller to itself",
		"{from: caller, to: a}\n- {from: caller, to: a}": "the edge caller -> a is listed twice",
	} {
		_, err := config.Parse("p.yaml", []byte(two+"- "+edge), config.Options{})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s", edge, err, says)
		}
	}
	named := "stages: [{stage_id: caller}, {stage_id: b}]\nedges: [{from: caller, to: b}]"
	p, err := config.Parse("p.yaml", []byte(named), config.Options{})
	if err != nil || len(p.Edges) != 1 || len(p.CallerEdges) != 0 {
		t.Errorf("a stage called caller: %v", err)
	}
}

// TestThreshold: a threshold of an edge's connector is what travels in messages on that edge,
// where the bus's own store carries it; other connectors keep it to themselves.
func TestThreshold(t *testing.T) {
	const file = "stages: [{stage_id: a, omnibus: {attach: true}}, {stage_id: b, omnibus: {attach: true}, input_connectors: {from_stage_a: {name: SharedMemoryConnector, extra: {%s}}}}]"
	for extra, want := range map[string]int{
		"": 0, "shm_threshold_bytes: 20000": 20000, "shm_threshold_bytes: 0": -1, "mode: segment, shm_threshold_bytes: 20000": 0,
	} {
		p, err := config.Parse("p.yaml", []byte(strings.Replace(file, "%s", extra, 1)), config.Options{})
		if err != nil {
			t.Fatal(err)
		}
		spec, _, err := p.BuildHost(nil)
		if err != nil || spec.Edges[0].InlineBytes != want {
			t.Errorf("{%s}: InlineBytes is %d, want %d: %v", extra, spec.Edges[0].InlineBytes, want, err)
		}
	}
}
