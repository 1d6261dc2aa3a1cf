package node_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestSubmitToFullHost: a waiting request ends at its deadline and frees its slot in the queue of
// the host, so that a client may submit any number of them.
func TestSubmitToFullHost(t *testing.T) {
	h := listen(t, testbus.Linear(bus.Stage("m", testbus.Upper)), bus.Options{MaxRequests: 1})
	first := testbus.StreamOf(t, h.bus)
	c := dialThin(t, h.path)
	c.await(wire.KindWelcome)
	const often = 1100 // more than may be open at once
	for i := range uint32(often) {
		c.send(&wire.Submit{Source: ownSource(i + 1), TimeLeft: int64(50 * time.Millisecond)})
		if i%500 == 499 {
			for range 500 {
				if m := c.await(wire.KindOver).(*wire.Over); m.Outcome != wire.OutcomeRefused || m.Code != uint32(wire.CodeOver) {
					t.Fatalf("%+v, want that it is over", m)
				}
			}
		}
	}
	n := h.join(t, node.JoinOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := n.Stream(ctx); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, bus.ErrDeadline) {
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

// TestAbortBeforeItBegins: a request that a client aborts or closes while it waits for a permit
// ends as aborted.
func TestAbortBeforeItBegins(t *testing.T) {
	h := listen(t, testbus.Linear(bus.Stage("m", testbus.Upper)), bus.Options{MaxRequests: 1})
	testbus.StreamOf(t, h.bus)
	c := dialThin(t, h.path)
	for i, m := range []wire.Message{&wire.AbortRequest{Source: ownSource(1), Text: "enough"}, &wire.Close{Source: ownSource(2)}} {
		c.send(&wire.Submit{Source: ownSource(uint32(i + 1))})
		c.send(m)
		over := c.await(wire.KindOver).(*wire.Over)
		if over.Source != ownSource(uint32(i+1)) || over.Outcome != wire.OutcomeAborted || over.Code != 0 {
			t.Errorf("%v: %+v", m.Kind(), over)
		}
	}
}
