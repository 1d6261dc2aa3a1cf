package flow_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/flow"
	"github.com/omnibus-runtime/omnibus/connector/shm"
)

// TestBranchesOfSegments: values of one request on two edges are two values, also where the key
// alone names a value; and Cleanup of the request releases them all.
func TestBranchesOfSegments(t *testing.T) {
	edge := func(from, to string) connector.Edge { return connector.Edge{From: from, To: to} }
	for name, edges := range map[string][]connector.Edge{
		"fan-out": {edge("0", "1"), edge("0", "2")},
		"fan-in":  {edge("0", "2"), edge("1", "2")},
		"apart":   {edge("0", "1"), edge("2", "3")},
	} {
		t.Run(name, func(t *testing.T) { testBranches(t, edges) })
	}
}

func testBranches(t *testing.T, edges []connector.Edge) {
	types := new(connector.Registry)
	if err := types.Register(shm.Type()); err != nil {
		t.Fatal(err)
	}
	segments := flow.Use{Name: "segments", Type: shm.Name, Extra: map[string]any{"mode": "segment"}}
	fan, one := flow.Plan{segments, segments}, flow.Plan{segments}
	fan[0].Edge, fan[1].Edge = edges[0], edges[1]
	one[0].Edge = edges[0]
	stage := func(plan flow.Plan, id string) *flow.Stage {
		s, err := plan.Open(t.Context(), types, id, connector.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	request := fmt.Sprintf("omnibus-test-%d", os.Getpid())
	send := func(plan flow.Plan, edge connector.Edge) flow.Notification {
		t.Helper()
		n, _, err := stage(plan, edge.From).Send(t.Context(), edge.To, request, nil, "on "+edge.String())
		if err != nil || n.RequestID != request {
			t.Fatalf("send on %s: %q, %v", edge, n.RequestID, err)
		}
		var told flow.Notification
		b, err := json.Marshal(n)
		if err = errors.Join(err, json.Unmarshal(b, &told)); err != nil {
			t.Fatal(err)
		}
		return told
	}
	for i, n := range []flow.Notification{send(fan, edges[0]), send(fan, edges[1])} {
		v, _, err := stage(fan, n.ToStage).Receive(t.Context(), n)
		if err != nil {
			t.Fatalf("receive at %s: %v", n.ToStage, err)
		}
		var got string
		if err := v.Decode(&got); err != nil || got != "on "+edges[i].String() {
			t.Errorf("stage %s received %q, %v", n.ToStage, got, err)
		}
		v.Release()
	}
	sender := stage(fan, edges[0].From)
	lost, _, err := sender.Send(t.Context(), edges[0].To, request, nil, "lost")
	if err == nil {
		err = sender.Cleanup(t.Context(), request)
	}
	if err != nil {
		t.Fatal(err)
	}
	var missing *flow.MissingError
	if _, _, err := stage(fan, edges[0].To).Receive(t.Context(), lost); !errors.As(err, &missing) || missing.Request != request {
		t.Errorf("receive of a value that was cleaned up: %v", err)
	}
	// On a chain of stages, vLLM-Omni looks under the request itself.
	n := send(one, edges[0])
	if _, err := os.Stat("/dev/shm/" + request); err != nil {
		t.Error(err)
	}
	v, _, err := stage(fan, edges[0].To).Receive(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	v.Release()
}

// TestNamesAlike: a plan distinguishes edges with any names of stages.
func TestNamesAlike(t *testing.T) {
	plan := flow.Plan{
		{Edge: connector.Edge{From: "a", To: "b -> c"}, Type: shm.Name},
		{Edge: connector.Edge{From: "a -> b", To: "c"}, Type: shm.Name, Extra: map[string]any{"ttl": 1}},
		{Edge: connector.Edge{From: "a", To: "c"}, Name: "n", Type: shm.Name},
		{Edge: connector.Edge{From: "a", To: "d"}, Name: "n", Type: shm.Name, Extra: map[string]any{}},
	}
	types := new(connector.Registry)
	if err := errors.Join(types.Register(shm.Type()), plan.Check(types)); err != nil {
		t.Error(err)
	}
	if needs := plan.Needs("a"); len(needs) != 2 {
		t.Errorf("stage a needs %v", needs)
	}
}
