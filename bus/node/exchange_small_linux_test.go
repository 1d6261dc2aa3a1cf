package node_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestSmallValuesTravelInMessages: values of up to 32 KiB are put and fetched in messages, in each
// process, and the client that puts them offers no memory.
func TestSmallValuesTravelInMessages(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	n := h.join(t, node.JoinOptions{ExchangeStore: exchangeStore})
	c := dialThin(t, h.path)
	c.await(wire.KindWelcome)
	mem, _ := newOffer(t, 1<<17, 1<<17)
	c.offer(mem, 1)
	want := block(1, wire.MaxInline)
	lie := 0 // the index in that memory
	for name, put := range map[string]func(key string){
		"a node":        func(key string) { put(t, n.Exchange(), key, want) },
		"the host":      func(key string) { put(t, h.bus.Exchange(), key, want) },
		"a thin client": func(key string) { c.send(placeInline(2, key, string(want))); c.await(wire.KindPlaced) },
		"memory of the thin client's": func(key string) {
			m := placeAt(uint32(3+lie), 1, key, len(want))
			m.Offset = uint64(lie * copy(mem.Bytes()[lie*len(want):], want))
			lie++
			c.send(m)
			c.await(wire.KindPlaced)
		},
	} {
		for range 2 {
			put("thin")
			c.send(fetchOf(20, "thin", 0))
			m := c.await(wire.KindFetched).(*wire.Fetched)
			if m.Flags != wire.FlagInline || !bytes.Equal(m.Payload, want) {
				t.Errorf("a value from %s comes with flags %d and %d bytes", name, m.Flags, len(m.Payload))
			}
			c.send(&wire.Finish{Delivery: m.Delivery})
			put("node")
			p := get(t, n.Exchange(), "node")
			if !bytes.Equal(p.Bytes(), want) {
				t.Errorf("a node gets %d bytes of a value from %s, or other bytes", len(p.Bytes()), name)
			}
			p.Release()
		}
	}
	h.wantEmpty(t)
	if node.HasExchangeMemory(n) {
		t.Error("the node has made memory for values that travel in messages")
	}
	c.send(&wire.Bye{})
}

// TestInlineValuesAreBounded: inline values take at most half of the host's exchange memory,
// rounding included. A node puts further values into memory of its own, and the host's process
// still has space for its own values.
func TestInlineValuesAreBounded(t *testing.T) {
	for _, size := range []int{wire.MaxInline, wire.MaxInline/2 + 1} { // both take the same space
		t.Run(fmt.Sprint(size), func(t *testing.T) { fillWithMessages(t, size) })
	}
}

func fillWithMessages(t *testing.T, size int) {
	const half = 1 << 20
	h := listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), bus.Options{ExchangeStore: shmstore.Options{ArenaBytes: 2 * half}})
	c := dialThin(t, h.path)
	value := block(1, size)
	key := func(i int) string { return fmt.Sprint("r1_thinker_", i) }
	const most = half / wire.MaxInline
	for i := range most {
		c.send(placeInline(uint32(i), key(i), string(value)))
		c.await(wire.KindPlaced)
	}
	c.send(placeInline(most, key(most), string(value)))
	c.wantFailed(most, wire.CodeOverloaded)

	n := h.join(t, node.JoinOptions{ExchangeStore: exchangeStore})
	for writer, end := range map[string]connector.Transport{"the node": n.Exchange(), "the host": h.bus.Exchange()} {
		put(t, end, "more", value)
		p := get(t, end, "more")
		if !bytes.Equal(p.Bytes(), value) {
			t.Errorf("a value from %s has %d bytes, or other bytes", writer, len(p.Bytes()))
		}
		p.Release()
	}
	if !node.HasExchangeMemory(n) {
		t.Error("the node has made no memory, although the host had no space")
	}
	for i := range most {
		c.send(&wire.Cleanup{Token: 1, Owner: 1, Key: key(i)})
		c.await(wire.KindCleaned)
	}
	c.send(placeInline(1, key(0), string(value)))
	c.await(wire.KindPlaced)
	c.send(&wire.Bye{})
	h.wantEmpty(t)
}
