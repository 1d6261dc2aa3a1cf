package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/connector/shm"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

var (
	exchangeEdge  = connector.Edge{From: "thinker", To: "talker"}
	exchangeStore = shmstore.Options{ArenaBytes: 8 << 20, MaxLargeBytes: 16 << 20}
)

// exchangeHost is a host with an exchange, and without nodes.
func exchangeHost(t testing.TB, opts bus.Options) *hosted {
	t.Helper()
	opts.ExchangeStore = exchangeStore
	return listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), opts)
}

func (h *hosted) exchange(t testing.TB) connector.Transport {
	t.Helper()
	return h.join(t, node.JoinOptions{ExchangeStore: exchangeStore}).Exchange()
}

// TestExchange runs the conformance suite of transports between processes.
func TestExchange(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, h *hosted) (put, get connector.Transport){
		"two nodes":    func(t *testing.T, h *hosted) (put, get connector.Transport) { return h.exchange(t), h.exchange(t) },
		"host to node": func(t *testing.T, h *hosted) (put, get connector.Transport) { return h.bus.Exchange(), h.exchange(t) },
		"node to host": func(t *testing.T, h *hosted) (put, get connector.Transport) { return h.exchange(t), h.bus.Exchange() },
		"one node": func(t *testing.T, h *hosted) (put, get connector.Transport) {
			n := h.join(t, node.JoinOptions{ExchangeStore: exchangeStore})
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
			connectortest.Run(t, connectortest.Ends{MetadataUnique: true, Open: func(t *testing.T) (put, get connector.Transport) {
				h := exchangeHost(t, bus.Options{})
				t.Cleanup(func() { h.wantEmpty(t) })
				return open(t, h)
			}})
		})
	}
}

// wantEmpty waits until no process holds a payload of the exchange, and requires that the exchange
// is empty.
func (h *hosted) wantEmpty(t testing.TB) {
	t.Helper()
	testbus.Await(t, func() bool { return len(h.server.Holdings()) == 0 })
	if st := h.bus.Stats().Exchange; st.Entries != 0 || st.Bytes != 0 {
		t.Errorf("no process holds a payload, and the exchange has %+v", st)
	}
}

func put(t testing.TB, e connector.Transport, key string, payload []byte) {
	t.Helper()
	putAs(t, e, key, payload)
}

// putAs puts a payload, and returns the metadata for Get.
func putAs(t testing.TB, e connector.Transport, key string, payload []byte) connector.Metadata {
	t.Helper()
	meta, err := e.Put(context.Background(), exchangeEdge, key, len(payload), filled(payload))
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	return meta
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
	wantGone(t, e, key, nil)
}

// wantGone fails if a payload with these metadata can be got.
func wantGone(t testing.TB, e connector.Transport, key string, meta connector.Metadata) {
	t.Helper()
	p, err := e.Get(context.Background(), exchangeEdge, key, meta)
	if err == nil {
		p.Release()
	}
	if !errors.Is(err, connector.ErrNotFound) {
		t.Errorf("get %q by %v: %v, want ErrNotFound", key, meta, err)
	}
}

// TestExchangeIsReported: the holdings name the process of each placed and each fetched payload.
func TestExchangeIsReported(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
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

// TestCleanupKeepsFetchedPayloads: a fetched payload stays unchanged when its key is cleaned up and
// put again, and when its producer's memory is filled. The number of a fetched, replaced or removed
// payload finds nothing.
func TestCleanupKeepsFetchedPayloads(t *testing.T) {
	h := exchangeHost(t, bus.Options{ExchangeTTL: time.Hour})
	from, to := h.exchange(t), h.exchange(t)
	held := putAs(t, from, "r1", payloadOf("large"))
	p := get(t, to, "r1")
	replaced := putAs(t, from, "r1", payloadOf("large"))
	lies := putAs(t, from, "r1", payloadOf("other"))
	wantGone(t, to, "r1", replaced)
	if err := from.Cleanup(t.Context(), "r1"); err != nil {
		t.Fatal(err)
	}
	for _, meta := range []connector.Metadata{held, lies} {
		wantGone(t, to, "r1", meta)
	}
	for range 100 { // 100 kB each, of 8 MB
		put(t, from, "r2", payloadOf("other"))
	}
	if !bytes.Equal(p.Bytes(), payloadOf("large")) {
		t.Error("a fetched payload was overwritten")
	}
	p.Release()
	if err := from.Cleanup(t.Context(), "r2"); err != nil {
		t.Fatal(err)
	}
	h.wantEmpty(t)
	h.wantPlaced(t, 0)
}

// TestExchangeCopiesNothing: a fetched payload lies in the memory of its producer.
func TestExchangeCopiesNothing(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	a := h.join(t, node.JoinOptions{ExchangeStore: exchangeStore})
	put(t, a.Exchange(), "k", bytes.Repeat([]byte("x"), 100_000))
	p := get(t, h.exchange(t), "k")
	if at := node.FetchedFrom(t, p); at.File != node.ExchangeFile(t, a) {
		t.Errorf("the payload lies at %+v, and its producer's memory is %d", at, node.ExchangeFile(t, a))
	}
	p.Release()
	h.wantEmpty(t)
}

// TestExchangeSweeps: a payload that no process fetches in time goes back to its producer, and the
// log names the payload and the producer.
func TestExchangeSweeps(t *testing.T) {
	var log lockedBuffer
	h := exchangeHost(t, bus.Options{ExchangeTTL: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	a := h.exchange(t)
	put(t, a, "r1_thinker_0", bytes.Repeat([]byte("x"), 10_000))
	testbus.Await(t, func() bool { return h.bus.Stats().Exchange.Swept == 1 })
	wantNothing(t, a, "r1_thinker_0")
	h.wantPlaced(t, 0)
	for _, want := range []string{"r1_thinker_0", "thinker -> talker", fmt.Sprint("process ", os.Getpid())} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q: %s", want, log.String())
		}
	}
}

// TestExchangeLateAnswer: a payload whose question is no longer open lies under its key again.
func TestExchangeLateAnswer(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	n := h.join(t, node.JoinOptions{ExchangeStore: exchangeStore})
	e := n.Exchange()
	for _, payload := range [][]byte{[]byte("small"), bytes.Repeat([]byte("x"), 100_000)} {
		put(t, e, "k", payload)
		node.FetchWithoutWaiter(t, n, exchangeEdge, "k")
		p := get(t, e, "k")
		if !bytes.Equal(p.Bytes(), payload) {
			t.Errorf("the payload under the key has %d bytes, want %d", len(p.Bytes()), len(payload))
		}
		p.Release()
	}
	h.wantEmpty(t)
}

// TestFetcherHangsUp: a process that hangs up and lives may still read its fetched payloads, so
// that they stay in place. Its placed payloads go.
func TestFetcherHangsUp(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	a := h.exchange(t)
	put(t, a, "k", bytes.Repeat([]byte("x"), 100_000))
	c := dialThin(t, h.path)
	c.send(fetchOf(1, "k", 0))
	c.await(wire.KindFetched)
	c.send(placeInline(2, "its own", "x"))
	c.await(wire.KindPlaced)
	c.send(&wire.Release{Delivery: 1 << 30}) // which is refused
	c.await(wire.KindRefuse)
	testbus.Await(t, func() bool { return h.bus.Stats().Exchange.Entries == 0 })
	for _, p := range h.server.Processes() {
		if p.Name == t.Name() && p.Placed != 1 {
			t.Errorf("%d payloads of the node are read, want the one that a living process has fetched", p.Placed)
		}
	}
	if all := h.server.Holdings(); len(all) != 1 || all[0].Together != "left" || all[0].Payloads != 1 || all[0].Bytes != 100_000 {
		t.Errorf("the holdings are %+v, want 100000 bytes once, as left", all)
	}
}

// lockedBuffer is a log that can be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestSharedMemoryConnector: the shared-memory connector, in the processes of a bus, uses the
// host's exchange. Closing one removes only its own payloads.
func TestSharedMemoryConnector(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	var types connector.Registry
	if err := types.Register(shm.Type()); err != nil {
		t.Fatal(err)
	}
	n := h.join(t, node.JoinOptions{ExchangeStore: exchangeStore})
	opened := func(x connector.Exchange) *connector.Connector {
		t.Helper()
		c, err := types.Open(t.Context(), shm.Name, connector.Options{Exchange: x})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b, reader := opened(n), opened(n), opened(h.bus)
	defer reader.Close()
	want := strings.Repeat("v", 100_000)
	for key, c := range map[string]*connector.Connector{"of a": a, "of b": b} {
		if _, meta, err := c.Put(t.Context(), exchangeEdge, key, want); err != nil || len(meta) != 2 {
			t.Fatalf("%v, %v", meta, err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Get(t.Context(), exchangeEdge, "of a", nil); !errors.Is(err, connector.ErrNotFound) {
		t.Errorf("a value whose connector is closed: %v", err)
	}
	v, err := reader.Await(t.Context(), exchangeEdge, "of b", nil)
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := v.Decode(&got); err != nil || got != want {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	v.Release()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
