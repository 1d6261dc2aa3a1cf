package node_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// packets reads packets of the host up to one with a message of a kind, and returns the kinds in
// each packet.
func (c *thinClient) packets(kind wire.Kind) (all [][]wire.Kind) {
	c.t.Helper()
	buf := make([]byte, wire.MaxPacket)
	for {
		n, _, err := c.conn.Receive(buf)
		if err != nil {
			c.t.Fatalf("no %v: %v", kind, err)
		}
		var kinds []wire.Kind
		found := false
		for rest := buf[:n]; len(rest) > 0; {
			var h wire.Header
			if h, _, rest, err = wire.Next(rest); err != nil {
				c.t.Fatal(err)
			}
			kinds = append(kinds, h.Kind)
			found = found || h.Kind == kind
		}
		if all = append(all, kinds); found {
			return all
		}
	}
}

// TestReturnedIsBatched: the message Returned is sent with the next message of the host, and at
// once where the window is full.
func TestReturnedIsBatched(t *testing.T) {
	open := func(t *testing.T, window int, spec bus.StageSpec) (c *thinClient, put func(number uint32)) {
		t.Helper()
		was := peer.QueueLaterDelay
		t.Cleanup(func() { peer.QueueLaterDelay = was })
		peer.QueueLaterDelay = time.Hour // messages that can wait for the next packet do wait
		h := listen(t, bus.Pipeline{
			Stages: []bus.StageSpec{spec},
			Edges:  []bus.Edge{{To: "m", Window: window}, {From: "m"}},
		}, bus.Options{})
		c = dialThin(t, h.path)
		c.await(wire.KindWelcome)
		source := ownSource(1)
		c.send(&wire.Submit{Source: source})
		return c, func(number uint32) {
			in := inMessage(number, source, "\xa2go")
			in.Codec = uint32(codec.IDMsgpack)
			c.send(in)
		}
	}
	t.Run("room for more", func(t *testing.T) {
		c, put := open(t, 64, bus.Stage("m", testbus.Upper))
		var all [][]wire.Kind
		for n := range uint32(2) {
			put(n + 1)
			all = append(all, c.packets(wire.KindDeliver)...)
		}
		if len(all) != 2 || !slices.Contains(slices.Concat(all...), wire.KindReturned) {
			t.Errorf("the host has sent %v, want two packets, and that the first put is returned", all)
		}
	})
	t.Run("no room", func(t *testing.T) {
		c, put := open(t, 1, bus.StageSpec{Name: "m", Handle: func(*bus.Task, *bus.Delivery) error { return nil }})
		put(1)
		c.await(wire.KindReturned) // the host has no other message to send
	})
}

// TestPutIntoTheStore: a payload that comes in a message and is too large for a delivery's message
// is copied to the host's store. Its slot in the window comes back when it is handled.
func TestPutIntoTheStore(t *testing.T) {
	const size = 20_000
	h := listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), storeOptions)
	c := dialThin(t, h.path)
	c.send(&wire.Serve{Token: 1, Stage: "m"})
	c.await(wire.KindServing)
	r := testbus.StreamOf(t, h.bus)
	if err := r.Send(t.Context(), "input"); err != nil {
		t.Fatal(err)
	}
	d := c.await(wire.KindDeliver).(*wire.Deliver)
	before := h.bus.Stats().Store.ReservedTotal
	payload := bytes.Repeat([]byte("x"), size)
	c.send(inMessage(1, d.Source, string(payload)))
	result, err := r.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(result.Bytes(), payload) || result.Handle.IsZero() {
		t.Errorf("%d bytes came, in the store: %t", len(result.Bytes()), !result.Handle.IsZero())
	}
	if st := h.bus.Stats().Store; st.ReservedTotal <= before {
		t.Errorf("%d reservations, %d before", st.ReservedTotal, before)
	}
	mustFinishResult(t, result)
	if back := c.await(wire.KindReturned).(*wire.Returned).Puts; len(back) != 1 || back[0] != 1 {
		t.Errorf("%v returned", back)
	}
}

// TestWaitingPutKeepsPayload: a payload that comes in a message and waits for a slot is not changed
// by later messages.
func TestWaitingPutKeepsPayload(t *testing.T) {
	h := listen(t, testbus.Remotes(bus.Pipeline{
		Stages: []bus.StageSpec{bus.Stage("m", testbus.Upper)},
		Edges:  []bus.Edge{{To: "m"}, {From: "m", Window: 1}},
	}), storeOptions)
	c, r, source := emitting(t, h)
	want := []string{"first", strings.Repeat("second ", 100), strings.Repeat("third ", 2000)}
	for i, payload := range want {
		c.send(inMessage(uint32(i+1), source, payload))
	}
	for range 3 {
		c.send(&wire.Call{Token: 9, Method: "check", Arguments: bytes.Repeat([]byte(" "), 20_000)})
		c.await(wire.KindReply)
	}
	for _, w := range want {
		d, err := r.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if string(d.Bytes()) != w {
			t.Errorf("%.20q came of %d bytes, want %.20q", d.Bytes(), len(d.Bytes()), w)
		}
		mustFinishResult(t, d)
	}
}
