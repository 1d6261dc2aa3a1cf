package node_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// sendAll sends messages in the fewest packets.
func (c *thinClient) sendAll(ms ...wire.Message) {
	c.t.Helper()
	var packet []byte
	send := func() {
		if err := c.conn.Send(packet, nil); err != nil {
			c.t.Fatal(err)
		}
		packet = packet[:0]
	}
	for _, m := range ms {
		one, err := wire.Append(nil, m, 0)
		if err != nil {
			c.t.Fatal(err)
		}
		if len(packet)+len(one) > wire.MaxPacket {
			send()
		}
		packet = append(packet, one...)
	}
	send()
}

// handled returns when the host has handled all messages of the client, whose connection is still
// open.
func (c *thinClient) handled() {
	c.t.Helper()
	const token = math.MaxUint32
	c.send(fetchOf(token, "nothing", 0))
	c.wantFailed(token, wire.CodeNothing)
}

// times makes n messages, numbered from 1.
func times(n int, message func(i uint32) wire.Message) []wire.Message {
	all := make([]wire.Message, n)
	for i := range all {
		all[i] = message(uint32(i + 1))
	}
	return all
}

// waitingRequest submits a request that gets no permit.
func (c *thinClient) waitingRequest(h *hosted) (source uint32) {
	c.t.Helper()
	testbus.StreamOf(c.t, h.bus) // holds the only permit
	c.send(&wire.Submit{Source: ownSource(1)})
	return ownSource(1)
}

// TestQueuesPerClientAreBounded: the queued messages of a source, the waiting requests and the open
// calls of a client are bounded. One more ends the client's connection, and other clients are not
// affected. docs/bounds.md has the same numbers.
func TestQueuesPerClientAreBounded(t *testing.T) {
	const queued, requests, calls = 4096, 1024, 1024
	for name, tc := range map[string]struct {
		begin func(c *thinClient, h *hosted) (message func(i uint32) wire.Message)
		most  int
		text  string
	}{
		"messages of a request": {
			most: queued, text: "more than 4096 messages wait for source 2147483649",
			begin: func(c *thinClient, h *hosted) func(i uint32) wire.Message {
				source := c.waitingRequest(h)
				return func(i uint32) wire.Message { return inMessage(i, source, "x") }
			},
		},
		"requests": {
			most: requests, text: "1025 requests wait for a permit, 1024 may",
			begin: func(c *thinClient, h *hosted) func(i uint32) wire.Message {
				testbus.StreamOf(c.t, h.bus) // holds the only permit
				return func(i uint32) wire.Message { return &wire.Submit{Source: ownSource(i)} }
			},
		},
		"calls": {
			most: calls, text: "1025 questions are open, 1024 may be",
			begin: func(*thinClient, *hosted) func(i uint32) wire.Message {
				return func(i uint32) wire.Message { return &wire.Call{Token: i, Method: "wait"} }
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := waitingHost(t)
			c := dialThin(t, h.path)
			c.await(wire.KindWelcome)
			message := tc.begin(c, h)
			c.sendAll(times(tc.most, message)...)
			c.handled()
			c.send(message(uint32(tc.most + 1)))
			c.wantRefused(wire.CodeProtocol, tc.text)
			other := dialThin(t, h.path)
			other.handled()
			other.send(&wire.Bye{})
		})
	}
}

// waitingHost is a host with one permit for requests, and a method "wait" whose answer comes only
// when the session ends.
func waitingHost(t *testing.T) *hosted {
	t.Helper()
	opts := storeOptions
	opts.MaxRequests, opts.ExchangeStore = 1, exchangeStore
	h := &hosted{bus: testbus.Open(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), opts), path: filepath.Join(t.TempDir(), "bus.sock")}
	var err error
	h.server, err = host.Listen(h.bus, h.path, host.ListenOptions{Methods: map[string]func(context.Context, []byte) (any, error){
		"wait": func(ctx context.Context, _ []byte) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.server.Close(context.Background()); err != nil {
			t.Errorf("close the server: %v", err)
		}
	})
	return h
}

// TestPlacedPayloadsAreBounded: the payloads of a client in the exchange are bounded, and so are
// the lasting payloads of all clients together. One more is refused until one is taken back.
func TestPlacedPayloadsAreBounded(t *testing.T) {
	const lasting = math.MaxUint32 // the owner that belongs to all clients
	for name, tc := range map[string]struct {
		most  int
		owner uint32
	}{
		"by a client": {most: 65_536, owner: 1},
		"to last":     {most: 4096, owner: lasting},
	} {
		t.Run(name, func(t *testing.T) {
			h := exchangeHost(t, bus.Options{})
			c := dialThin(t, h.path)
			c.await(wire.KindWelcome)
			place := func(i uint32) wire.Message {
				m := placeInline(i, fmt.Sprint("k", i), "x")
				m.Owner = tc.owner
				return m
			}
			most := uint32(tc.most)
			const atOnce = 1024
			for first := range tc.most / atOnce {
				c.sendAll(times(atOnce, func(i uint32) wire.Message { return place(uint32(first*atOnce) + i) })...)
				for range atOnce {
					c.await(wire.KindPlaced)
				}
			}
			c.sendAll(place(most+1), fetchOf(most+2, "nothing", 0)) // the second failure comes after the first
			c.wantFailed(most+1, wire.CodeOverloaded)
			c.wantFailed(most+2, wire.CodeNothing)
			c.send(fetchOf(most+3, "k1", 0))
			c.send(&wire.Finish{Delivery: c.await(wire.KindFetched).(*wire.Fetched).Delivery})
			c.send(place(most + 4))
			c.await(wire.KindPlaced)
			c.send(&wire.Bye{})
		})
	}
}
