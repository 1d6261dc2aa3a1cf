package node_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestReturnedSpaceIsFree: the space of a put in the client's memory can be reused when the put is
// returned.
func TestReturnedSpaceIsFree(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), storeOptions)
	c := dialThin(t, h.path)
	c.send(&wire.Serve{Token: 1, Stage: "m"})
	c.await(wire.KindServing)
	r := testbus.StreamOf(t, h.bus)
	if err := r.Send(t.Context(), "input"); err != nil {
		t.Fatal(err)
	}
	d := c.await(wire.KindDeliver).(*wire.Deliver)
	mem, _ := newOffer(t, 1<<12, 1<<12)
	c.offer(mem, 1)
	for put := range uint32(3) {
		c.send(&wire.Put{Put: put + 1, Source: d.Source, Delivery: d.Delivery, Codec: 1, Segment: 1, Size: 1000})
		result, err := r.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := result.Finish(nil); err != nil {
			t.Fatal(err)
		}
		if back := c.await(wire.KindReturned).(*wire.Returned).Puts; len(back) != 1 || back[0] != put+1 {
			t.Fatalf("put %d: %v returned", put+1, back)
		}
	}
}
