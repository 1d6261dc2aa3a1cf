package node_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/connector"
)

func openTransport(t *testing.T, x connector.Exchange, lasting bool) connector.Transport {
	t.Helper()
	e, err := x.OpenExchange(lasting)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestLastingPayloadsOutliveOwner: a lasting payload stays after its transport is closed and its
// process has left. Any process can get it, or clean it up. Other payloads go with their owner.
func TestLastingPayloadsOutliveOwner(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	n := h.join(t, node.JoinOptions{ExchangeStore: exchangeStore})
	for _, size := range []int{10, 100_000, 3 << 20} { // in a message, in the arena, in a segment of its own
		for key, lasting := range map[string]bool{"stays": true, "r1_thinker_0": true, "goes": false} {
			end := openTransport(t, n, lasting)
			put(t, end, key, block(size, size))
			if err := end.Close(); err != nil {
				t.Fatal(err)
			}
		}
		other := h.exchange(t)
		for _, key := range []string{"stays", "goes"} {
			got, err := other.Get(t.Context(), exchangeEdge, key, nil)
			switch {
			case key == "goes" && errors.Is(err, connector.ErrNotFound):
			case key == "goes" || err != nil || !bytes.Equal(got.Bytes(), block(size, size)):
				t.Errorf("%d bytes: %s: %v", size, key, err)
			default:
				got.Release()
			}
		}
	}
	put(t, openTransport(t, n, true), "survivor", block(7, 200_000))
	if err := n.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, last := range []connector.Transport{h.exchange(t), openTransport(t, h.bus, true)} {
		if err := last.Close(); err != nil { // removes no payload of other owners
			t.Fatal(err)
		}
	}
	got, err := h.exchange(t).Get(t.Context(), exchangeEdge, "survivor", nil)
	if err != nil || !bytes.Equal(got.Bytes(), block(7, 200_000)) {
		t.Fatalf("behind a node that left: %v", err)
	}
	got.Release()
	m := h.join(t, node.JoinOptions{ExchangeStore: exchangeStore})
	own := openTransport(t, m, false)
	if err := own.Cleanup(t.Context(), "r1_thinker_0"); err != nil {
		t.Fatal(err)
	}
	if e := h.bus.Stats().Exchange.Entries; e != 1 {
		t.Errorf("%d payloads after a cleanup of another owner's key, want 1", e)
	}
	if err := openTransport(t, m, true).Cleanup(t.Context(), "r1_thinker_0"); err != nil {
		t.Fatal(err)
	}
	h.wantEmpty(t)
}

// TestLastingPayloadsAreReported: the host lists each lasting payload once, without an owner,
// whichever process put it.
func TestLastingPayloadsAreReported(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	n := h.join(t, node.JoinOptions{ExchangeStore: exchangeStore})
	put(t, openTransport(t, n, true), "by a node", block(1, 10_000))
	inHost := openTransport(t, h.bus, true)
	put(t, inHost, "by the host", block(2, 2000))
	put(t, openTransport(t, h.bus, false), "the host's own", block(3, 300))
	if err := n.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]host.Holding)
	for _, l := range h.server.Holdings() {
		if l.Age <= 0 || l.Edge != "thinker->talker" || seen[l.Key].Key != "" {
			t.Errorf("a lease without an age, on another edge, or listed twice: %+v", l)
		}
		l.Age, l.Edge = 0, ""
		seen[l.Key] = l
	}
	want := map[string]host.Holding{
		"by a node":      {Name: "nobody", Key: "by a node", Bytes: 10_000, Exchange: "lasting"},
		"by the host":    {Name: "nobody", Key: "by the host", Bytes: 2000, Exchange: "lasting"},
		"the host's own": {Name: "the host", PID: os.Getpid(), Key: "the host's own", Bytes: 300, Exchange: "placed"},
	}
	if !maps.Equal(seen, want) {
		t.Errorf("the leases are\n%+v, want\n%+v", seen, want)
	}
	for _, key := range []string{"by a node", "by the host"} {
		if err := inHost.Cleanup(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	get(t, h.exchange(t), "the host's own").Release()
	h.wantEmpty(t)
}
