package node_test

import (
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestLargerThanTheWindowAcrossProcesses: payloads that exceed a window pass between nodes, on the
// direct path and through the host, and from and to a caller in another process.
func TestLargerThanTheWindowAcrossProcesses(t *testing.T) {
	reserving := func(name string) bus.StageSpec {
		return bus.StageSpec{Name: name, Handle: func(task *bus.Task, d *bus.Delivery) error {
			out, err := task.Reserve(len(d.Bytes()), codec.IDRaw)
			if err != nil {
				return err
			}
			codec.Copy(out.Bytes(), d.Bytes())
			return out.Send(len(d.Bytes()))
		}}
	}
	forward := bus.StageSpec{Name: "b", Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }}
	for name, more := range map[string]bus.Pipeline{
		"past the host": testbus.Linear(reserving("a"), forward, reserving("c")),
		"through the host": {
			Stages: []bus.StageSpec{reserving("a"), forward, reserving("c")},
			Edges:  []bus.Edge{{From: "a", To: "b", Policy: bus.Fail, Window: bus.Unbounded}, {From: "b", To: "c"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "through the host" {
				more.Edges[0].Policy = bus.Block
				more.Stages[0].State, more.Stages[1].State, more.Stages[2].State = bus.StateNone, bus.StateNone, bus.StateNone
			}
			h := serveAll(t, more, bus.Options{})
			streamBlocks(t, h.join(t, node.JoinOptions{}), 8, 100, huge, 3000, huge+5)
			streamBlocks(t, h.bus, 4, huge, 3000)
		})
	}
}

// TestLargePayloadIsRedelivered: a large payload that a killed process held goes to another
// process.
func TestLargePayloadIsRedelivered(t *testing.T) {
	h := mortalHost(t, bus.StageSpec{Replicas: 2, State: bus.StateNone})
	h.child(t, "m")
	h.child(t, "m")
	in := "kill" + strings.Repeat(".", 2*huge)
	r, err := h.bus.Submit(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	got, err := testbus.Receive(t, r)
	if err != nil || len(got) != 2 || got[0] != in+" once" || got[1] != in+" twice" {
		t.Errorf("%d results: %v", len(got), err)
	}
}
