package bus_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestNodesLearnOfTensors: whoever emits on an edge is told how its tensors travel,
// unless it speaks an older version.
func TestNodesLearnOfTensors(t *testing.T) {
	p := linear(bus.Stage("a", upper), bus.Stage("b", upper), bus.Stage("c", upper))
	p.Edges[0].Tensors, p.Edges[0].TensorMinBytes = bus.TensorsPool, 1<<16
	p.Edges[1].Tensors = bus.TensorsIPC
	p.Edges = append(p.Edges, bus.Edge{To: "a", Tensors: bus.TensorsPool, TensorMinBytes: 7})
	h := listen(t, remotes(p), bus.Options{})
	n := h.join(t, bus.JoinOptions{})
	go func() {
		_ = n.Serve(context.Background(), bus.Stage("a", upper), bus.Stage("b", upper), bus.Stage("c", upper))
	}()
	r, err := n.Submit(t.Context(), "hello")
	if err != nil {
		t.Fatal(err)
	}
	mustReceive(t, r, []string{"HELLO"})
	got := make(map[string]string)
	for _, e := range bus.EmitsOn(n) {
		got[e.From+">"+e.To] = fmt.Sprint(e.Tensors, " ", e.TensorMinBytes)
	}
	want := map[string]string{"a>b": "cuda_ipc_pool 65536", "b>c": "cuda_ipc 0", "c>": "default 0", ">a": "cuda_ipc_pool 7"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for version := uint16(wire.VersionMin); version <= wire.Version; version++ {
		c := dialThinAs(t, h.path, version)
		hd, body, _, err := c.in.Next()
		if err != nil || hd.Kind != wire.KindWelcome {
			t.Fatalf("%v, %v", hd.Kind, err)
		}
		var m wire.Welcome
		if err := wire.Decode(body, version, &m); err != nil || m.Version != version || (len(m.Tensors) == 1) != (version >= 5) {
			t.Errorf("version %d is welcomed with %+v, %v", version, m, err)
		}
		c.send(&wire.Bye{})
	}
}
