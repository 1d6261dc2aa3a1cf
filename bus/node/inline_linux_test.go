package node_test

import (
	"bytes"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestInlineBytesOfAnEdge: each edge has its own limit for payloads that travel in messages, in the
// host's process and between processes.
func TestInlineBytesOfAnEdge(t *testing.T) {
	const size = 20_000
	p := func() bus.Pipeline {
		p := testbus.Linear(pass("a"), pass("b"), pass("c"))
		p.Edges[0].InlineBytes, p.Edges[1].InlineBytes = size, -1
		return p
	}
	for name, s := range map[string]*bus.Bus{"in process": testbus.Open(t, p(), bus.Options{}), "nodes": serveAll(t, p(), bus.Options{}).bus} {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{10, 600, size, size + 1} {
				r := testbus.StreamOf(t, s)
				if err := r.Input(t.Context()).EmitBytes(block(n, n), bus.Last()); err != nil {
					t.Fatal(err)
				}
				d, err := r.Recv(t.Context())
				if err != nil || !bytes.Equal(d.Bytes(), block(n, n)) {
					t.Fatalf("%d bytes: %v", n, err)
				}
				if err := d.Finish(nil); err != nil {
					t.Fatal(err)
				}
				if err := r.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				r.Close()
			}
			if name != "in process" {
				return // the host does not see how a direct delivery travelled
			}
			want := map[string]int64{"a->b": 3, "b->c": 0, "->a": 1, "c->": 1}
			for _, e := range s.Stats().Edges {
				if n, ok := want[e.From+"->"+e.To]; ok && e.Inline != n {
					t.Errorf("on %s->%s %d payloads were inline, want %d", e.From, e.To, e.Inline, n)
				}
			}
		})
	}
}

// TestInlineBytesInMessages: Welcome tells a client the largest limit of all edges, and the host
// sends the payloads of an edge in messages up to its limit.
func TestInlineBytesInMessages(t *testing.T) {
	const size = 3000 // less than what submitAll sends
	for most, inline := range map[int]bool{0: false, size + 100: true, -1: false} {
		thin := most < 0 // a client without lanes gets all payloads that fit into a message inline
		p := testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper)))
		p.Edges = append(p.Edges, bus.Edge{To: "m", InlineBytes: most})
		h := listen(t, p, storeOptions)
		c := dialThin(t, h.path)
		if w := c.await(wire.KindWelcome).(*wire.Welcome); int(w.InlineBytes) != max(most, bus.DefaultInlineBytes) {
			t.Errorf("InlineBytes %d: the client is told of %d", most, w.InlineBytes)
		}
		if !thin {
			c.send(&wire.Lanes{})
		}
		c.send(&wire.Serve{Token: 1, Stage: "m"})
		c.await(wire.KindServing)
		r := submitAll(t, h.bus, "x")
		m := c.await(wire.KindDeliver).(*wire.Deliver)
		if m.Size < size || (m.Flags&wire.FlagInline != 0) != (inline || thin) {
			t.Errorf("InlineBytes %d: %d bytes came with the flags %d", most, m.Size, m.Flags)
		}
		r.Close()
	}
}
