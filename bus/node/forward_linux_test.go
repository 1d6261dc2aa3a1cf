package node_test

import (
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestForwardOutlivesItsDelivery: a client forwards a delivery of one task on another task, and
// finishes the delivery while the emission waits for its window. The payload stays until the
// emission is sent. The same holds for a kept payload that the client releases.
func TestForwardOutlivesItsDelivery(t *testing.T) {
	for name, keep := range map[string]bool{"finished": false, "kept": true} {
		t.Run(name, func(t *testing.T) {
			h := listen(t, bus.Pipeline{
				Stages: []bus.StageSpec{{Name: "a", Remote: &bus.Remote{}}},
				Edges:  []bus.Edge{{From: "a", Window: 1}},
			}, bus.Options{})
			c := dialThin(t, h.path)
			c.await(wire.KindWelcome)
			c.send(&wire.Serve{Token: 1, Stage: "a"})
			c.await(wire.KindServing)
			t.Cleanup(submitAll(t, h.bus, "has the payload").Close)
			has := c.await(wire.KindDeliver).(*wire.Deliver)
			r := submitAll(t, h.bus, "gets it")
			t.Cleanup(r.Close)
			gets := c.await(wire.KindDeliver).(*wire.Deliver)
			c.send(inMessage(2, gets.Source, "fills the window"))
			if keep {
				c.send(&wire.Finish{Delivery: has.Delivery, Flags: wire.FinishKeep})
			}
			c.send(&wire.Put{Put: 3, Source: gets.Source, Delivery: has.Delivery, Flags: wire.FlagForward | wire.FlagLast})
			if keep {
				c.send(&wire.Release{Delivery: has.Delivery})
			} else {
				c.send(&wire.Finish{Delivery: has.Delivery})
			}
			c.send(&wire.Finish{Delivery: gets.Delivery})
			c.send(&wire.Call{Token: 4, Method: "check"})
			c.await(wire.KindReply) // the host has handled all earlier messages
			var got []string
			for range 2 {
				d, err := r.Recv(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, string(d.Bytes()))
				mustFinishResult(t, d)
				if len(got) == 1 {
					c.await(wire.KindReturned) // the window has a free slot
				}
			}
			if want := large("has the payload"); !strings.HasSuffix(got[1], want) { // encoded
				t.Errorf("%.20q came, of %d bytes", got[1], len(got[1]))
			}
		})
	}
}
