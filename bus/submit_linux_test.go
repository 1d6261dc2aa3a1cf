package bus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestSubmitToAHostThatIsFull: who gives up is forgotten at its deadline, and may
// ask as often as it likes.
func TestSubmitToAHostThatIsFull(t *testing.T) {
	h := listen(t, linear(bus.Stage("m", upper)), bus.Options{MaxRequests: 1})
	first := streamOf(t, h.bus)
	c := dialThin(t, h.path)
	c.await(wire.KindWelcome)
	const often = 1100 // more than may be open at once
	deadline := time.Now().Add(50 * time.Millisecond).UnixNano()
	for i := range uint32(often) {
		c.send(&wire.Submit{Token: i + 1, Deadline: deadline})
		if i%500 == 499 {
			for range 500 {
				if m := c.await(wire.KindFailed).(*wire.Failed); m.Code != wire.CodeOver {
					t.Fatalf("%+v, want that it is over", m)
				}
			}
			deadline = time.Now().Add(50 * time.Millisecond).UnixNano()
		}
	}
	n := h.join(t, bus.JoinOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := n.Submit(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, bus.ErrDeadline) {
		t.Errorf("submit: %v", err)
	}
	first.Close()
	r, err := n.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, err := range r.Results(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestEmissionForARequestThatFailed: a client that waits for its place in a window hears that
// the request is over, whatever another stage has failed of.
func TestEmissionForARequestThatFailed(t *testing.T) {
	for what, ask := range map[string]func(source uint32) wire.Message{
		"emit":    func(source uint32) wire.Message { return &wire.Emit{Token: 3, Source: source, Payload: []byte("x")} },
		"reserve": func(source uint32) wire.Message { return &wire.Reserve{Token: 3, Source: source, Size: 1000} },
	} {
		t.Run(what, func(t *testing.T) {
			fail := make(chan struct{})
			h := listen(t, bus.Pipeline{
				Stages: []bus.StageSpec{{Name: "emits", Remote: &bus.Remote{}}, {Name: "fails", Handle: func(*bus.Task, *bus.Delivery) error {
					<-fail
					return bus.ErrTooLarge
				}}},
				Edges: []bus.Edge{{To: "emits"}, {To: "fails"}, {From: "emits", Window: 1}},
			}, bus.Options{})
			c := dialThin(t, h.path)
			c.await(wire.KindWelcome)
			c.send(&wire.Serve{Token: 1, Stage: "emits"})
			c.await(wire.KindServing)
			r := submitAll(t, h.bus, "x")
			defer r.Close()
			source := c.await(wire.KindDeliver).(*wire.Deliver).Source
			c.send(&wire.Emit{Token: 2, Source: source, Payload: []byte("fills the window")})
			c.await(wire.KindEmitted)
			c.send(ask(source))
			c.send(&wire.Call{Token: 4, Method: "check"})
			c.await(wire.KindReply) // so that it waits
			close(fail)
			if m := c.await(wire.KindFailed).(*wire.Failed); m.Token != 3 || m.Code != wire.CodeOver || !strings.Contains(m.Text, `"fails"`) {
				t.Errorf("%+v, want that the request is over, and why", m)
			}
		})
	}
}
