package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

var (
	exchangeEdge  = connector.Edge{From: "thinker", To: "talker"}
	exchangeStore = shmstore.Options{ArenaBytes: 8 << 20, MaxLargeBytes: 16 << 20}
)

// exchanging is a host with nothing to do but to exchange, and no node yet.
func exchanging(t testing.TB, opts bus.Options) *hosted {
	t.Helper()
	opts.ExchangeStore = exchangeStore
	return listen(t, remotes(linear(bus.Stage("m", upper))), opts)
}

func (h *hosted) exchange(t testing.TB) connector.Transport {
	t.Helper()
	return h.join(t, bus.JoinOptions{ExchangeStore: exchangeStore}).Exchange()
}

// TestExchange runs the suite of transports between processes.
func TestExchange(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, h *hosted) (put, get connector.Transport){
		"two nodes":    func(t *testing.T, h *hosted) (put, get connector.Transport) { return h.exchange(t), h.exchange(t) },
		"host to node": func(t *testing.T, h *hosted) (put, get connector.Transport) { return h.bus.Exchange(), h.exchange(t) },
		"node to host": func(t *testing.T, h *hosted) (put, get connector.Transport) { return h.exchange(t), h.bus.Exchange() },
		"one node": func(t *testing.T, h *hosted) (put, get connector.Transport) {
			n := h.join(t, bus.JoinOptions{ExchangeStore: exchangeStore})
			return n.Exchange(), n.Exchange()
		},
		"in the host": func(_ *testing.T, h *hosted) (put, get connector.Transport) {
			return h.bus.Exchange(), h.bus.Exchange()
		},
		"one end": func(t *testing.T, h *hosted) (put, get connector.Transport) {
			e := h.exchange(t)
			return e, e
		},
	} {
		t.Run(name, func(t *testing.T) {
			connectortest.Run(t, connectortest.Ends{Open: func(t *testing.T) (put, get connector.Transport) {
				h := exchanging(t, bus.Options{})
				t.Cleanup(func() { h.wantEmpty(t) })
				return open(t, h)
			}})
		})
	}
}

// wantEmpty waits for the exchange to be empty, and for nobody to hold anything of
// it.
func (h *hosted) wantEmpty(t testing.TB) {
	t.Helper()
	await(func() bool { return len(h.server.Holdings()) == 0 })
	if st := h.bus.Stats().Exchange; st.Entries != 0 || st.Bytes != 0 {
		t.Errorf("nobody holds anything of the exchange, which has %+v", st)
	}
}

func put(t testing.TB, e connector.Transport, key string, payload []byte) {
	t.Helper()
	if _, err := e.Put(context.Background(), exchangeEdge, key, len(payload), filled(payload)); err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
}

func filled(payload []byte) func([]byte) error {
	return func(dst []byte) error { copy(dst, payload); return nil }
}

func get(t testing.TB, e connector.Transport, key string) connector.Payload {
	t.Helper()
	p, err := e.Get(context.Background(), exchangeEdge, key, nil)
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	return p
}

func wantNothing(t testing.TB, e connector.Transport, key string) {
	t.Helper()
	p, err := e.Get(context.Background(), exchangeEdge, key, nil)
	if err == nil {
		p.Release()
	}
	if !errors.Is(err, connector.ErrNotFound) {
		t.Errorf("get %q: %v, want ErrNotFound", key, err)
	}
}

// TestExchangeIsSeen: reports say who has placed and who has fetched what.
func TestExchangeIsSeen(t *testing.T) {
	h := exchanging(t, bus.Options{})
	a, b := h.exchange(t), h.exchange(t)
	payload := bytes.Repeat([]byte("x"), 10_000)
	put(t, a, "r1_thinker_0", payload)
	put(t, a, "r1_thinker_1", payload)
	held := get(t, b, "r1_thinker_1")
	var seen []string
	for _, l := range h.server.Holdings() {
		seen = append(seen, fmt.Sprint(l.Exchange, " ", l.Edge, " ", l.Key, " ", l.Bytes))
	}
	all := strings.Join(seen, "\n")
	for _, want := range []string{"placed thinker->talker r1_thinker_0 10000", "fetched thinker->talker r1_thinker_1 10000"} {
		if !strings.Contains(all, want) || len(seen) != 2 {
			t.Errorf("no %q among the leases:\n%s", want, all)
		}
	}
	if st := h.server.Status().Stats.Exchange; st.Entries != 1 || st.Bytes != 10_000 {
		t.Errorf("the status says %+v, want one entry of 10000 bytes", st)
	}
	held.Release()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	h.wantEmpty(t)
}

func isUnavailable(err error) bool { return errors.Is(err, connector.ErrUnavailable) }
