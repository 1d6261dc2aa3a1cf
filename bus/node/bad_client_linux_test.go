package node_test

import (
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// work has the client serve the stage, and returns the first delivery of a request.
func (c *thinClient) work(h *hosted) *wire.Deliver {
	c.t.Helper()
	c.send(&wire.Serve{Token: 1, Stage: "m"})
	c.await(wire.KindServing)
	if err := testbus.StreamOf(c.t, h.bus).Send(c.t.Context(), "input"); err != nil {
		c.t.Fatal(err)
	}
	return c.await(wire.KindDeliver).(*wire.Deliver) //nolint:forcetypeassert // it is of that kind
}

// inMessage is a put with its payload in the message.
func inMessage(put, source uint32, payload string) *wire.Put {
	return &wire.Put{Put: put, Source: source, Edge: wire.AllEdges, Flags: wire.FlagInline, Codec: uint32(codec.IDRaw), Size: uint64(len(payload)), Payload: []byte(payload)}
}

// offer offers memory of the client to the host, under a number.
func (c *thinClient) offer(mem *shmstore.Segment, number uint32) {
	c.t.Helper()
	c.sendFD(&wire.Offer{Segment: number, Bytes: uint64(mem.Size())}, mem.FD())
}

// TestBadClients: a client that breaks the protocol, or offers memory that is not sealed, is
// refused, and the refusal says why. The host keeps running, and all memory comes back.
func TestBadClients(t *testing.T) {
	const maxOffered, clientBytes = 4096, 1 << 30
	mem, _ := newOffer(t, 1<<12, 1<<12)
	large, _ := newOffer(t, 64<<20, 64<<20)
	for name, bad := range map[string]struct {
		text string
		do   func(c *thinClient, h *hosted)
	}{
		"ends a task unasked": {"was not asked to end", func(c *thinClient, h *hosted) {
			c.send(&wire.Ended{Task: c.work(h).Source})
		}},
		"ends a request as a task": {"was not asked to end", func(c *thinClient, _ *hosted) {
			c.send(&wire.Submit{Source: ownSource(1)})
			c.send(&wire.Ended{Task: ownSource(1)})
		}},
		"ends a task that has inputs to come": {"was not asked to end", func(c *thinClient, h *hosted) {
			c.send(&wire.Serve{Token: 1, Stage: "m", Flags: wire.ServeEnds})
			c.await(wire.KindServing)
			r := testbus.StreamOf(c.t, h.bus)
			if err := r.Send(c.t.Context(), "input"); err != nil {
				c.t.Fatal(err)
			}
			d := c.await(wire.KindDeliver).(*wire.Deliver)
			c.send(&wire.Finish{Delivery: d.Delivery})
			c.send(&wire.Ended{Task: d.Source})
		}},
		"ends a task that it has not said it ends": {"was not asked to end", func(c *thinClient, h *hosted) {
			c.send(&wire.Serve{Token: 1, Stage: "m"})
			c.await(wire.KindServing)
			submitAll(c.t, h.bus, "input")
			c.send(&wire.Ended{Task: c.await(wire.KindDeliver).(*wire.Deliver).Source})
		}},
		"numbers two requests alike": {"has numbered one 2147483653 before: use higher numbers", func(c *thinClient, _ *hosted) {
			c.send(&wire.Submit{Source: ownSource(5)})
			c.send(&wire.Submit{Source: ownSource(5)})
		}},
		"numbers a request lower than another": {"numbers a request 2147483652, and has numbered one 2147483653", func(c *thinClient, _ *hosted) {
			c.send(&wire.Submit{Source: ownSource(5)})
			c.send(&wire.Submit{Source: ownSource(4)})
		}},
		"numbers a request as the host does": {"numbers a request 5: use numbers from 2147483648 on", func(c *thinClient, _ *hosted) {
			c.send(&wire.Submit{Source: 5})
		}},
		"does not number a request": {"numbers a request 0: use numbers from", func(c *thinClient, _ *hosted) {
			c.send(&wire.Submit{})
		}},
		"closes a task as a request": {"is a task, not a request", func(c *thinClient, h *hosted) {
			c.send(&wire.CloseSend{Source: c.work(h).Source})
		}},
		"forwards what it has not": {"delivery 7 is not the client's to forward", func(c *thinClient, h *hosted) {
			d := c.work(h)
			c.send(&wire.Put{Put: 1, Source: d.Source, Delivery: 7, Flags: wire.FlagForward})
		}},
		"puts on an edge behind the last of a task": {"has 1 edges, none has the index 1", func(c *thinClient, h *hosted) {
			m := inMessage(1, c.work(h).Source, "x")
			m.Edge = 1
			c.send(m)
		}},
		"puts on an edge behind the last of a request": {"has 1 edges, none has the index 1", func(c *thinClient, _ *hosted) {
			c.send(&wire.Submit{Source: ownSource(1)})
			m := inMessage(1, ownSource(1), "x")
			m.Edge = 1
			c.send(m)
		}},
		"ends a stream on an edge behind the last": {"edge 1 of 1", func(c *thinClient, h *hosted) {
			c.send(&wire.Streamed{Source: c.work(h).Source, Edge: 1})
		}},
		"leaves a stage behind the last that it serves": {"it leaves stage 1 of 1 that it serves", func(c *thinClient, h *hosted) {
			c.work(h)
			c.send(&wire.Leave{Stages: []uint32{1}})
		}},
		"offers a number twice": {"segment 1 was offered before", func(c *thinClient, _ *hosted) {
			c.offer(mem, 1)
			c.offer(mem, 1)
		}},
		"offers without end": {"a client may have 4096 segments", func(c *thinClient, _ *hosted) {
			for i := range uint32(maxOffered + 1) {
				c.offer(mem, i)
			}
		}},
		"offers more than there is": {"the client offers 67108864 bytes more", func(c *thinClient, _ *hosted) {
			for i := range uint32(clientBytes/(64<<20) + 1) {
				c.offer(large, i)
			}
		}},
		"puts what is in nothing it offered": {"segment 7 was not offered", func(c *thinClient, h *hosted) {
			c.send(&wire.Put{Put: 1, Source: c.work(h).Source, Segment: 7, Size: 1})
		}},
		"puts what lies outside": {"segment 1: protocol: 4096 bytes at 64 of a segment of 4096", func(c *thinClient, h *hosted) {
			d := c.work(h)
			c.offer(mem, 1)
			c.send(&wire.Put{Put: 1, Source: d.Source, Delivery: d.Delivery, Segment: 1, Offset: 64, Size: 4096})
		}},
		"puts what has no memory": {"segment 1: protocol: 10 bytes at 5 of a segment that has no memory there yet", func(c *thinClient, h *hosted) {
			d := c.work(h)
			c.sendFD(&wire.Offer{Segment: 1, Bytes: 1 << 12}, holes(c.t, 1<<12))
			c.send(&wire.Put{Put: 1, Source: d.Source, Delivery: d.Delivery, Segment: 1, Offset: 5, Size: 10})
		}},
		"puts what covers a hole": {"segment 1: protocol: 12288 bytes at 0 of a segment that has no memory there yet", func(c *thinClient, h *hosted) {
			d := c.work(h)
			c.sendFD(&wire.Offer{Segment: 1, Bytes: 3 << 12}, around(c.t, 1<<12))
			c.send(&wire.Put{Put: 1, Source: d.Source, Delivery: d.Delivery, Segment: 1, Size: 1 << 12}) // up to the hole
			c.send(&wire.Put{Put: 2, Source: d.Source, Delivery: d.Delivery, Segment: 1, Size: 3 << 12})
		}},
		"puts what ends in a hole": {"segment 1: protocol: 2 bytes at 4095 of a segment that has no memory there yet", func(c *thinClient, h *hosted) {
			d := c.work(h)
			c.sendFD(&wire.Offer{Segment: 1, Bytes: 3 << 12}, around(c.t, 1<<12))
			c.send(&wire.Put{Put: 1, Source: d.Source, Delivery: d.Delivery, Segment: 1, Offset: 1<<12 - 1, Size: 2})
		}},
		"puts what lies behind a hole": {"segment 1: protocol: 4096 bytes at 8192 of a segment that has no memory there yet", func(c *thinClient, h *hosted) {
			d := c.work(h)
			c.sendFD(&wire.Offer{Segment: 1, Bytes: 3 << 12}, around(c.t, 1<<12))
			c.send(&wire.Put{Put: 1, Source: d.Source, Delivery: d.Delivery, Segment: 1, Offset: 2 << 12, Size: 1 << 12})
		}},
		"puts around what is not returned": {"segment 1: protocol: 1000 bytes at 0 overlap the payload at 400 to 500", func(c *thinClient, h *hosted) {
			d := c.work(h)
			c.offer(mem, 1)
			c.send(&wire.Put{Put: 1, Source: d.Source, Delivery: d.Delivery, Segment: 1, Offset: 400, Size: 100})
			c.send(&wire.Put{Put: 2, Source: d.Source, Delivery: d.Delivery, Segment: 1, Size: 1000})
		}},
		"puts what lies far outside": {"segment 1: protocol: 2 bytes at 18446744073709551615", func(c *thinClient, h *hosted) {
			d := c.work(h)
			c.offer(mem, 1)
			c.send(&wire.Put{Put: 1, Source: d.Source, Delivery: d.Delivery, Segment: 1, Offset: 1<<64 - 1, Size: 2})
		}},
		"puts over what is not returned": {"segment 1: protocol: 100 bytes at 900 overlap the payload at 0 to 1000", func(c *thinClient, h *hosted) {
			d := c.work(h)
			c.offer(mem, 1)
			c.send(&wire.Put{Put: 1, Source: d.Source, Delivery: d.Delivery, Segment: 1, Size: 1000})
			c.send(&wire.Put{Put: 2, Source: d.Source, Delivery: d.Delivery, Segment: 1, Offset: 900, Size: 100})
		}},
		"puts the same again": {"segment 1: protocol: 1000 bytes at 0 overlap", func(c *thinClient, h *hosted) {
			d := c.work(h)
			c.offer(mem, 1)
			for put := range uint32(2) {
				c.send(&wire.Put{Put: put + 1, Source: d.Source, Delivery: d.Delivery, Segment: 1, Size: 1000})
			}
		}},
		"forgets what it has not offered": {"segment 7 was not offered", func(c *thinClient, _ *hosted) {
			c.send(&wire.Forget{Segment: 7})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := exchangeHost(t, bus.Options{Store: shmstore.Options{MaxLargeBytes: 1 << 20}})
			c := dialThin(t, h.path)
			c.await(wire.KindWelcome)
			bad.do(c, h)
			code := wire.CodeProtocol
			if strings.HasPrefix(name, "offers ") && name != "offers a number twice" {
				code = wire.CodeOverloaded
			}
			c.wantRefused(code, bad.text)
			h.wantEmpty(t)
			h.join(t, node.JoinOptions{})
		})
	}
}
