package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// exchangeModel is the model of an exchange with several ends: a map whose entries belong to the
// end that put them.
type exchangeModel struct {
	h      *hosted
	nodes  []*node.Node
	ends   []*modelEnd
	placed map[modelKey]modelEntry
	held   []modelHeld
	puts   int
}

type modelEnd struct {
	connector.Transport
	node int // -1: the host's own
}

type modelKey struct {
	edge connector.Edge
	key  string
}

type modelEntry struct {
	payload []byte
	meta    connector.Metadata
	end     *modelEnd
}

type modelHeld struct {
	payload connector.Payload
	want    []byte
	node    int
}

var (
	modelEdges = []connector.Edge{exchangeEdge, {From: "talker", To: "vocoder"}}
	modelKeys  = []string{"r1", "r1_thinker_0", "r1_thinker_1", "r2_talker_0", "r2"}
)

func (m *exchangeModel) key(t *rapid.T) modelKey {
	return modelKey{rapid.SampledFrom(modelEdges).Draw(t, "edge"), rapid.SampledFrom(modelKeys).Draw(t, "key")}
}

func (m *exchangeModel) end(t *rapid.T) *modelEnd { return rapid.SampledFrom(m.ends).Draw(t, "end") }

func (m *exchangeModel) open(node int) {
	e := m.h.bus.Exchange()
	if node >= 0 {
		e = m.nodes[node].Exchange()
	}
	m.ends = append(m.ends, &modelEnd{Transport: e, node: node})
}

// release drops the entries that of selects.
func (m *exchangeModel) release(of func(modelKey, modelEntry) bool) {
	maps.DeleteFunc(m.placed, of)
}

func (m *exchangeModel) put(t *rapid.T) {
	e, at := m.end(t), m.key(t)
	m.puts++
	payload := bytes.Repeat([]byte{byte(m.puts)}, rapid.SampledFrom([]int{0, 1, 512, 513, 5_000, wire.MaxInline, wire.MaxInline + 1, 300_000, 3 << 20}).Draw(t, "size"))
	meta, err := e.Put(context.Background(), at.edge, at.key, len(payload), filled(payload))
	if err != nil {
		t.Fatalf("put: %v", err)
	}
	m.placed[at] = modelEntry{payload, meta, e}
}

func (m *exchangeModel) get(t *rapid.T) {
	e, at := m.end(t), m.key(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	fetch, missing := e.Get, connector.ErrNotFound
	if rapid.Bool().Draw(t, "wait") {
		fetch, missing = e.Await, context.DeadlineExceeded
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rapid.IntRange(0, 200).Draw(t, "µs"))*time.Microsecond)
		defer cancel()
	}
	want, lies := m.placed[at]
	var meta connector.Metadata
	if rapid.Bool().Draw(t, "by its number") {
		meta = want.meta
	}
	got, err := fetch(ctx, at.edge, at.key, meta)
	switch {
	case err == nil && !lies:
		t.Fatalf("%v: %d bytes where nothing lies", at, len(got.Bytes()))
	case err == nil:
		delete(m.placed, at)
		m.held = append(m.held, modelHeld{got, want.payload, e.node})
	case errors.Is(missing, context.DeadlineExceeded) && errors.Is(err, missing):
		// The context may end before the lookup: then the entry stays.
	case lies || !errors.Is(err, missing):
		t.Fatalf("%v: %v, and there are %d bytes: %v", at, err, len(want.payload), lies)
	}
}

func (m *exchangeModel) releaseHeld(t *rapid.T) {
	if len(m.held) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(t, "held")
	m.checkAndRelease(t, m.held[i])
	m.held = slices.Delete(m.held, i, i+1)
}

func (m *exchangeModel) checkAndRelease(t *rapid.T, h modelHeld) {
	if !bytes.Equal(h.payload.Bytes(), h.want) {
		t.Errorf("%d bytes that are not the %d that were put", len(h.payload.Bytes()), len(h.want))
	}
	h.payload.Release()
}

func (m *exchangeModel) cleanup(t *rapid.T) {
	e, key := m.end(t), rapid.SampledFrom(modelKeys).Draw(t, "key")
	if err := e.Cleanup(context.Background(), key); err != nil {
		t.Fatal(err)
	}
	m.release(func(at modelKey, entry modelEntry) bool {
		return entry.end == e && at.key == key
	})
}

func (m *exchangeModel) reopen(t *rapid.T) {
	i := rapid.IntRange(0, len(m.ends)-1).Draw(t, "closed")
	e := m.ends[i]
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	m.ends = slices.Delete(m.ends, i, i+1)
	m.release(func(_ modelKey, entry modelEntry) bool { return entry.end == e })
	m.open(e.node)
}

// rejoin releases a node's payloads, closes the node, and joins again.
func (m *exchangeModel) rejoin(t *rapid.T) {
	node := rapid.IntRange(0, len(m.nodes)-1).Draw(t, "node")
	m.held = slices.DeleteFunc(m.held, func(h modelHeld) bool {
		if h.node == node {
			m.checkAndRelease(t, h)
		}
		return h.node == node
	})
	before := len(m.h.server.Processes())
	if err := m.nodes[node].Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return len(m.h.server.Processes()) < before })
	m.release(func(_ modelKey, entry modelEntry) bool { return entry.end.node == node })
	n := 0
	m.ends = slices.DeleteFunc(m.ends, func(e *modelEnd) bool {
		if e.node == node {
			n++
		}
		return e.node == node
	})
	m.join(t, node)
	for range n {
		m.open(node)
	}
}

func (m *exchangeModel) join(t interface{ Fatal(...any) }, number int) {
	n, err := node.Join(context.Background(), fmt.Sprint("node ", number), node.JoinOptions{Socket: m.h.path, ExchangeStore: exchangeStore})
	if err != nil {
		t.Fatal(err)
	}
	m.nodes[number] = n
}

func (m *exchangeModel) check(t *rapid.T) {
	size := int64(0)
	for _, entry := range m.placed {
		size += int64(len(entry.payload))
	}
	var st bus.ExchangeStats
	testbus.Await(t, func() bool { // nodes send messages to the host without waiting
		st = m.h.bus.Stats().Exchange
		return st.Entries == len(m.placed) && st.Bytes == size
	})
}

// TestExchangeAgainstModel runs random operations of several nodes and the host, with nodes that
// leave and join.
func TestExchangeAgainstModel(t *testing.T) {
	files := testbus.OpenFiles(t)
	h := exchangeHost(t, bus.Options{})
	rapid.Check(t, func(t *rapid.T) {
		m := &exchangeModel{h: h, nodes: make([]*node.Node, 2), placed: make(map[modelKey]modelEntry)}
		for node := range m.nodes {
			m.join(t, node)
			m.open(node)
			m.open(node)
		}
		m.open(-1)
		t.Repeat(map[string]func(*rapid.T){
			"put": m.put, "put more": m.put, "get": m.get, "get more": m.get, "let go": m.releaseHeld,
			"cleanup": m.cleanup, "reopen": m.reopen, "leave": m.rejoin, "": m.check,
		})
		for _, held := range m.held {
			m.checkAndRelease(t, held)
		}
		for _, e := range m.ends {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
		if st := h.bus.Stats().Exchange; st.Entries != 0 {
			t.Errorf("all ends are closed, and the exchange has %+v", st)
		}
		for _, n := range m.nodes {
			if err := n.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
		testbus.Await(t, func() bool { return len(h.server.Processes()) == 0 })
	})
	h.wantEmpty(t)
	const lasting = 16 // the host's own socket, store and arena of the exchange
	if now := testbus.OpenFiles(t); now > files+lasting {
		t.Errorf("%d descriptors are open, %d were before", now, files)
	}
}

// TestEachValueIsFetchedOnce: many readers await the same keys with short timeouts, and each value
// reaches exactly one of them.
func TestEachValueIsFetchedOnce(t *testing.T) {
	const keys, readers = 60, 3
	h := exchangeHost(t, bus.Options{})
	a := h.exchange(t)
	ends := []connector.Transport{h.exchange(t), h.exchange(t), h.bus.Exchange()}
	var got [keys]atomic.Int64
	var left atomic.Int64
	left.Store(keys)
	var wait sync.WaitGroup
	for r := range readers {
		for i := range keys {
			wait.Go(func() {
				for patience := time.Microsecond; left.Load() > 0 && got[i].Load() == 0; patience += patience/4 + time.Microsecond {
					ctx, cancel := context.WithTimeout(t.Context(), min(patience, 10*time.Millisecond))
					p, err := ends[r].Await(ctx, exchangeEdge, fmt.Sprint("key", i), nil)
					cancel()
					if err != nil {
						if !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("await: %v", err)
							return
						}
						continue
					}
					if len(p.Bytes()) != 1+i*37 {
						t.Errorf("key %d has %d bytes", i, len(p.Bytes()))
					}
					p.Release()
					got[i].Add(1)
					left.Add(-1)
				}
			})
		}
	}
	for i := range keys {
		put(t, a, fmt.Sprint("key", i), make([]byte, 1+i*37))
	}
	wait.Wait()
	for i := range got {
		if n := got[i].Load(); n != 1 {
			t.Errorf("key %d reached %d", i, n)
		}
	}
	h.wantEmpty(t)
	h.wantPlaced(t, 0)
}
