package node_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/limits"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func (c *thinClient) wantFailed(token uint32, code wire.Code) string {
	c.t.Helper()
	m := c.await(wire.KindFailed).(*wire.Failed)
	if m.Token != token || m.Code != code {
		c.t.Fatalf("question %d has the code %v (%s), want %v for question %d", m.Token, m.Code, m.Text, code, token)
	}
	return m.Text
}

func placeAt(token, segment uint32, key string, size int) *wire.Place {
	return &wire.Place{Token: token, Owner: 1, Put: token, Segment: segment, Size: uint64(size), From: exchangeEdge.From, To: exchangeEdge.To, Key: key}
}

func placeInline(token uint32, key, payload string) *wire.Place {
	m := placeAt(token, 0, key, len(payload))
	m.Flags, m.Payload, m.Put = wire.FlagInline, []byte(payload), 0
	return m
}

func fetchOf(token uint32, key string, flags uint8) *wire.Fetch {
	return &wire.Fetch{Token: token, Flags: flags, From: exchangeEdge.From, To: exchangeEdge.To, Key: key}
}

// TestThinClientPlaces: a client places payloads in memory of its own, and the memory comes back.
func TestThinClientPlaces(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	b := h.exchange(t)
	c := dialThin(t, h.path)
	c.await(wire.KindWelcome)
	mem, _ := newOffer(t, 1<<17, 1<<17)
	c.offer(mem, 1)
	for i, size := range []int{40_000, 100_000} {
		want := bytes.Repeat([]byte{byte(i + 1)}, size)
		copy(mem.Bytes(), want)
		c.send(placeAt(3, 1, "placed", size))
		c.await(wire.KindPlaced)
		p := get(t, b, "placed")
		if !bytes.Equal(p.Bytes(), want) {
			t.Errorf("%d bytes came of %d, or other bytes", len(p.Bytes()), size)
		}
		p.Release()
		if back := c.await(wire.KindReturned).(*wire.Returned).Puts; len(back) != 1 || back[0] != 3 {
			t.Errorf("%v returned", back)
		}
	}
	h.wantEmpty(t)
	testbus.Await(t, func() bool { return placedBy(h, c) == 0 })
	for _, p := range h.server.Processes() {
		if p.Arena.Payloads != 0 || p.Arena.Used != 0 {
			t.Errorf("%+v", p.Arena)
		}
	}
	c.send(&wire.Bye{})
}

// placedBy is how many payloads a thin client, which was the last to attach, has in the exchange.
func placedBy(h *hosted, _ *thinClient) int {
	all := h.server.Processes()
	return all[len(all)-1].Placed
}

// exchangeStalls are the stalls of processes that wait for the exchange.
func exchangeStalls(t *testing.T, h *hosted) (all []bus.Stall) {
	t.Helper()
	n, err := node.Join(t.Context(), "asks", node.JoinOptions{Socket: h.path})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := n.Call(t.Context(), "stalls", nil)
	if err == nil {
		err = json.Unmarshal(answer, &all)
	}
	if err := errors.Join(err, n.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(s bus.Stall) bool { return s.Edge != "exchange" })
}

// stalls are the texts of exchangeStalls.
func stalls(t *testing.T, h *hosted) (all []string) {
	t.Helper()
	for _, s := range exchangeStalls(t, h) {
		all = append(all, s.String())
	}
	return all
}

// TestThinClientFetches: a payload is fetched once. A payload that is finished unread lies under
// its key again, unless the key has a new payload or the owner is gone.
func TestThinClientFetches(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	a := h.exchange(t)
	c := dialThin(t, h.path)
	c.send(fetchOf(1, "k", 0))
	c.wantFailed(1, wire.CodeNothing)
	fetch := func(want string) uint32 {
		t.Helper()
		c.send(fetchOf(2, "k", 0))
		m := c.await(wire.KindFetched).(*wire.Fetched)
		if string(m.Payload) != want {
			t.Fatalf("fetched %q, want %q", m.Payload, want)
		}
		return m.Delivery
	}
	unread := func(delivery uint32) { c.send(&wire.Finish{Delivery: delivery, Flags: wire.FinishUnread}) }
	put(t, a, "k", []byte("first"))
	unread(fetch("first"))
	id := fetch("first")
	put(t, a, "k", []byte("second"))
	unread(id)
	id = fetch("second")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	unread(id)
	c.send(fetchOf(3, "k", 0))
	c.wantFailed(3, wire.CodeNothing)

	// A payload that is finished unread answers a waiting fetch.
	c.send(placeInline(4, "k", "third"))
	c.await(wire.KindPlaced)
	id = fetch("third")
	c.send(fetchOf(5, "k", wire.FetchWait))
	unread(id)
	m := c.await(wire.KindFetched).(*wire.Fetched)
	c.send(&wire.Finish{Delivery: m.Delivery})
	c.send(fetchOf(6, "k", wire.FetchWait))
	testbus.Await(t, func() bool { return len(stalls(t, h)) == 1 })
	if s := stalls(t, h)[0]; !strings.Contains(s, `"k" on thinker -> talker, which no process has placed`) {
		t.Errorf("the stall says %q", s)
	}
	c.send(&wire.Cancel{Token: 6})
	c.wantFailed(6, wire.CodeNothing)
	c.send(&wire.Cancel{Token: 6}) // does nothing
	c.send(&wire.Cleanup{Token: 7, Owner: 1})
	c.await(wire.KindCleaned)
	h.wantEmpty(t)
	c.send(&wire.Bye{})
}

// TestThinClientCleansUp: a cleanup removes an owner's payload with exactly that key, or all
// payloads of the owner.
func TestThinClientCleansUp(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	c := dialThin(t, h.path)
	for i, key := range []string{"r1_thinker_0", "r1_thinker_1", "other", "more"} {
		c.send(placeInline(uint32(i), key, key))
		c.await(wire.KindPlaced)
	}
	for _, step := range []struct {
		m    *wire.Cleanup
		want uint32
	}{
		{&wire.Cleanup{Owner: 2}, 0},
		{&wire.Cleanup{Owner: 1, Key: "r1"}, 0},
		{&wire.Cleanup{Owner: 1, Key: "r1_thinker_0"}, 1},
		{&wire.Cleanup{Owner: 1, Key: "other"}, 1},
		{&wire.Cleanup{Owner: 1}, 2},
		{&wire.Cleanup{Owner: 1}, 0},
	} {
		c.send(step.m)
		if got := c.await(wire.KindCleaned).(*wire.Cleaned).Count; got != step.want {
			t.Errorf("cleanup of %q as %d took %d back, want %d", step.m.Key, step.m.Owner, got, step.want)
		}
	}
	c.send(&wire.Bye{})
}

// TestExchangeAnswers: invalid questions are answered with an error, and the connection stays.
func TestExchangeAnswers(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	c := dialThin(t, h.path)
	c.send(placeInline(1, "a/b", "x"))
	c.wantFailed(1, wire.CodeInvalid)
	c.send(&wire.Fetch{Token: 2, From: "", To: "talker", Key: "k"})
	c.wantFailed(2, wire.CodeInvalid)
	if n := placedBy(h, c); n != 0 {
		t.Errorf("%d payloads are counted for what failed", n)
	}
	c.send(&wire.Bye{})
}

// TestBadExchangePeers: a client that breaks the protocol is refused, with the reason.
func TestBadExchangePeers(t *testing.T) {
	fetched := func(c *thinClient) uint32 {
		c.send(placeInline(1, "k", "x"))
		c.await(wire.KindPlaced)
		c.send(fetchOf(2, "k", 0))
		return c.await(wire.KindFetched).(*wire.Fetched).Delivery
	}
	for name, bad := range map[string]struct {
		want string
		do   func(c *thinClient) wire.Message
	}{
		"no such segment": {"segment 7 was not offered", func(*thinClient) wire.Message { return placeAt(1, 7, "k", 1) }},
		"keeps": {"whose payloads are not kept", func(c *thinClient) wire.Message {
			return &wire.Finish{Delivery: fetched(c), Flags: wire.FinishKeep}
		}},
		"finishes twice": {"is not the client's to finish", func(c *thinClient) wire.Message {
			m := &wire.Finish{Delivery: fetched(c)}
			c.send(m)
			return m
		}},
		"passes on": {"is not the client's to forward", func(c *thinClient) wire.Message {
			m := &wire.Put{Put: 1, Source: wire.OwnSource | 1, Delivery: fetched(c), Flags: wire.FlagForward}
			c.send(&wire.Submit{Source: m.Source})
			return m
		}},
		"asks twice": {"question 9 is open already", func(c *thinClient) wire.Message {
			c.send(fetchOf(9, "never", wire.FetchWait))
			return fetchOf(9, "never", wire.FetchWait)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := exchangeHost(t, bus.Options{})
			c := dialThin(t, h.path)
			c.send(bad.do(c))
			if m := c.await(wire.KindRefuse).(*wire.Refuse); m.Code != wire.CodeProtocol || !strings.Contains(m.Text, bad.want) {
				t.Errorf("refused with %v, %q; want %q", m.Code, m.Text, bad.want)
			}
			h.wantEmpty(t)
		})
	}
}

func errOf(_ connector.Payload, err error) error { return err }

// TestExchangeBounds: the owners and the waiting questions of a client are bounded.
func TestExchangeBounds(t *testing.T) {
	const owners, waits = 4096, 4096
	h := exchangeHost(t, bus.Options{})
	c := dialThin(t, h.path)
	place := func(owner uint32) {
		m := placeInline(owner, fmt.Sprint("k", owner), "x")
		m.Owner = owner
		c.send(m)
	}
	for i := range uint32(owners) {
		place(i)
		c.await(wire.KindPlaced)
	}
	place(owners)
	c.send(fetchOf(owners+1, "nothing", 0)) // its failure comes after the first
	c.wantFailed(owners, wire.CodeOverloaded)
	c.wantFailed(owners+1, wire.CodeNothing)
	c.send(&wire.Cleanup{Token: 1, Owner: 0})
	c.await(wire.KindCleaned)
	place(owners)
	c.await(wire.KindPlaced)

	for i := range uint32(waits) {
		c.send(fetchOf(i, "never", wire.FetchWait))
	}
	c.sendAll(fetchOf(waits, "never", wire.FetchWait), fetchOf(waits+1, "nothing", 0)) // the second failure comes after the first
	c.wantFailed(waits, wire.CodeOverloaded)
	c.wantFailed(waits+1, wire.CodeNothing)
	c.send(&wire.Bye{})
}

// TestExchangeOwnSegments: the placed payloads with their own segments, each with a descriptor in
// the host, are bounded. Further ones are refused until one comes back.
func TestExchangeOwnSegments(t *testing.T) {
	const most = 64
	h := exchangeHost(t, bus.Options{})
	b := h.exchange(t)
	c := dialThin(t, h.path)
	c.await(wire.KindWelcome)
	place := func(i uint32) {
		mem, _ := newOffer(t, 1<<12, 1<<12)
		c.offer(mem, i)
		m := placeAt(i, i, fmt.Sprint("k", i), 1<<12)
		m.Flags |= wire.FlagOwn
		c.send(m)
	}
	for i := range uint32(most) {
		place(i)
		c.await(wire.KindPlaced)
	}
	place(most)
	c.send(fetchOf(most+1, "nothing", 0)) // its failure comes after the first
	c.wantFailed(most, wire.CodeOverloaded)
	c.wantFailed(most+1, wire.CodeNothing)
	get(t, b, "k0").Release()
	c.await(wire.KindReturned)
	place(most)
	c.await(wire.KindPlaced)
	c.send(&wire.Bye{})
}

// TestWelcomeSaysTheBounds: Welcome tells the largest payload and how many segments a client may
// offer.
func TestWelcomeSaysTheBounds(t *testing.T) {
	h := exchangeHost(t, bus.Options{Store: shmstore.Options{MaxLargeBytes: 64 << 20}})
	c := connectThin(t, h.path)
	c.send(helloOf(wire.Version))
	m := c.await(wire.KindWelcome).(*wire.Welcome)
	if m.LargestMib != 64 || m.Segments < 16 || m.Segments > 4096 || int(m.Segments) > max(limits.Files()/4, 16) {
		t.Errorf("payloads of %d MiB in %d segments; the host may open %d files", m.LargestMib, m.Segments, limits.Files())
	}
	c.send(&wire.Bye{})
}
