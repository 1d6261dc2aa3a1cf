package flow_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/flow"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// registry has one type, whose connectors share a ring, and counts the connectors that were opened.
func registry(t *testing.T, opened *int) *connector.Registry {
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
	types := new(connector.Registry)
	if err := types.Register(connector.Type{
		Name:    "Ring",
		Options: []connector.Option{{Key: "refuse", Kind: connector.Flag, Default: false}},
		Open: func(_ context.Context, config connector.Config) (connector.Transport, error) {
			if config.Settings.Flag("refuse") {
				return nil, connector.ErrUnavailable
			}
			*opened++
			return r.End(), nil
		},
	}); err != nil {
		t.Fatal(err)
	}
	return types
}

// plan is a fan-out and a fan-in.
var plan = flow.Plan{
	{Edge: connector.Edge{From: "0", To: "1"}, Name: "shared", Type: "Ring"},
	{Edge: connector.Edge{From: "0", To: "2"}, Name: "shared", Type: "Ring"},
	{Edge: connector.Edge{From: "1", To: "3"}, Type: "Ring"},
	{Edge: connector.Edge{From: "2", To: "3"}, Type: "Ring"},
	{Edge: connector.Edge{From: "3", To: "4"}, Name: "shared", Type: "Ring"},
}

func open(t *testing.T, types *connector.Registry, stage string) *flow.Stage {
	t.Helper()
	s, err := plan.Open(t.Context(), types, stage, connector.Options{})
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

func TestNeeds(t *testing.T) {
	for stage, want := range map[string][]string{
		"0": {"sender of 2"},
		"1": {"receiver of 1", "sender of 1"},
		"3": {"receiver of 1", "receiver of 1", "sender of 1"},
		"4": {"receiver of 1"},
		"5": nil,
	} {
		var got []string
		for _, n := range plan.Needs(stage) {
			got = append(got, n.Role.String()+" of "+string(rune('0'+len(n.Edges))))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("stage %s: %s", stage, diff)
		}
	}
	if both := (flow.Plan{
		{Edge: connector.Edge{From: "0", To: "1"}, Name: "x", Type: "Ring"},
		{Edge: connector.Edge{From: "1", To: "2"}, Name: "x", Type: "Ring"},
	}).Needs("1"); len(both) != 1 || both[0].Role != flow.Sender|flow.Receiver {
		t.Errorf("a connector on both sides: %v", both)
	}
}

// TestTransfer sends on every edge, with the notifications as JSON.
func TestTransfer(t *testing.T) {
	var opened int
	types := registry(t, &opened)
	stages := make(map[string]*flow.Stage)
	for _, id := range []string{"0", "1", "2", "3", "4"} {
		stages[id] = open(t, types, id)
	}
	if opened != 1+2+2+3+1 {
		t.Errorf("%d connectors were opened", opened)
	}
	for _, use := range plan {
		msg := map[string]any{"edge": use.Edge.From + "->" + use.Edge.To}
		n, sent, err := stages[use.Edge.From].Send(t.Context(), use.Edge.To, "r1", map[string]any{"n": 1}, msg)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		var told flow.Notification
		if err := json.Unmarshal(b, &told); err != nil {
			t.Fatal(err)
		}
		v, got, err := stages[use.Edge.To].Receive(t.Context(), told)
		if err != nil {
			t.Fatal(err)
		}
		var out map[string]string
		if err := v.Decode(&out); err != nil {
			t.Fatal(err)
		}
		v.Release()
		if sent.Bytes != got.Bytes || sent.Bytes == 0 || out["edge"] != use.Edge.From+"->"+use.Edge.To {
			t.Errorf("%s: sent %+v, got %+v, %+v", use.Edge, sent, got, out)
		}
		want := [...]flow.Times{{Sending: sent.Took}, {InFlight: got.InFlight, Receiving: got.Took}}
		for i, stage := range []*flow.Stage{stages[use.Edge.From], stages[use.Edge.To]} {
			if p, err := stage.Path(use.Edge); err != nil || p.Times() != want[i] {
				t.Errorf("%s: %+v, %v, want %+v", use.Edge, p.Times(), err, want[i])
			}
		}
	}
}

// TestNotification compares the fields with vLLM-Omni's names.
func TestNotification(t *testing.T) {
	b, err := codec.MsgpackSerializer{}.Append(nil, flow.Notification{
		Type: "generate", RequestID: "r1", FromConnector: true, FromStage: "0", ToStage: "1", SentTS: 1.5,
		Metadata: connector.Metadata{"size": 3},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := (codec.MsgpackSerializer{}).Decode(b, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"type": "generate", "request_id": "r1", "sampling_params": nil, "from_connector": true, "from_stage": "0",
		"to_stage": "1", "sent_ts": 1.5, "connector_metadata": map[string]any{"size": int8(3)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMissing(t *testing.T) {
	var opened int
	types := registry(t, &opened)
	from, to := open(t, types, "0"), open(t, types, "1")
	n, _, err := from.Send(t.Context(), "1", "r1", nil, "value")
	if err != nil {
		t.Fatal(err)
	}
	if err := from.Cleanup(t.Context(), "r1"); err != nil {
		t.Fatal(err)
	}
	_, _, err = to.Receive(t.Context(), n)
	var missing *flow.MissingError
	if !errors.As(err, &missing) || missing.Request != "r1" || missing.Edge != plan[0].Edge || !errors.Is(err, connector.ErrNotFound) {
		t.Errorf("a value that was cleaned up: %v", err)
	}
}

func TestWrongEdge(t *testing.T) {
	var opened int
	types := registry(t, &opened)
	s := open(t, types, "1")
	if _, _, err := s.Send(t.Context(), "4", "r1", nil, "value"); err == nil {
		t.Errorf("sent on an edge that does not exist: %v", err)
	}
	for name, n := range map[string]flow.Notification{
		"for another stage":       {RequestID: "r1", FromConnector: true, FromStage: "0", ToStage: "2"},
		"from nowhere":            {RequestID: "r1", FromConnector: true, FromStage: "7", ToStage: "1"},
		"not through a connector": {RequestID: "r1", FromStage: "0", ToStage: "1"},
	} {
		if _, _, err := s.Receive(t.Context(), n); err == nil {
			t.Errorf("a notification %s: %v", name, err)
		}
	}
	p, err := s.Path(plan[0].Edge)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Receive(t.Context(), flow.Notification{RequestID: "r1", FromConnector: true, FromStage: "1", ToStage: "3"}); err == nil {
		t.Errorf("a path with a notification of another edge: %v", err)
	}
}

func TestBadPlan(t *testing.T) {
	var opened int
	types := registry(t, &opened)
	a, b := connector.Edge{From: "0", To: "1"}, connector.Edge{From: "1", To: "2"}
	for _, c := range []struct {
		want string
		plan flow.Plan
	}{
		{"to itself", flow.Plan{{Edge: connector.Edge{From: "0", To: "0"}, Type: "Ring"}}},
		{"stands twice", flow.Plan{{Edge: a, Type: "Ring"}, {Edge: a, Type: "Ring"}}},
		{"defined differently", flow.Plan{{Edge: a, Name: "x", Type: "Ring"}, {Edge: b, Name: "x", Type: "Ring", Extra: map[string]any{"a": 1}}}},
		{`unknown type "Rings"`, flow.Plan{{Edge: a, Type: "Rings"}}},
		{"refuse must be true or false", flow.Plan{{Edge: a, Type: "Ring", Extra: map[string]any{"refuse": 7}}}},
	} {
		_, err := c.plan.Open(t.Context(), types, "0", connector.Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if opened != 0 {
		t.Errorf("%d connectors were opened for bad plans", opened)
	}
	unavailable := flow.Plan{{Edge: a, Type: "Ring"}, {Edge: connector.Edge{From: "0", To: "2"}, Type: "Ring", Extra: map[string]any{"refuse": true}}}
	_, err := unavailable.Open(t.Context(), types, "0", connector.Options{})
	if !errors.Is(err, connector.ErrUnavailable) || !strings.Contains(err.Error(), `stage "0" as sender on 0 -> 2`) {
		t.Errorf("a connector that cannot be opened: %v", err)
	}
}
