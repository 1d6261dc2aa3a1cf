package node_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestServesPerClientAreBounded: the stages that a client serves are bounded. One more is refused,
// and neither the client nor others are affected.
func TestServesPerClientAreBounded(t *testing.T) {
	const enough = 1024 // as docs/bounds.md has it
	h := listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), storeOptions)
	c := dialThin(t, h.path)
	for range enough {
		c.send(&wire.Serve{Token: 1, Stage: "m"})
		if m := c.await(wire.KindServing).(*wire.Serving); m.Replica != m.Stage {
			t.Fatalf("%+v, want the replicas in turn", m)
		}
	}
	c.sendAll(&wire.Serve{Token: 2, Stage: "m"}, fetchOf(3, "nothing", 0)) // the second failure comes after the first
	c.wantFailed(2, wire.CodeOverloaded)
	c.wantFailed(3, wire.CodeNothing)
	other := dialThin(t, h.path)
	other.send(&wire.Serve{Token: 3, Stage: "m"})
	if m := other.await(wire.KindServing).(*wire.Serving); m.Replica != enough {
		t.Errorf("the next client is replica %d, want %d", m.Replica, enough)
	}
	c.send(&wire.Bye{})
	testbus.Await(t, func() bool { return h.server.Serving("m") == 1 })
}
