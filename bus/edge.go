package bus

import (
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	connflow "github.com/omnibus-runtime/omnibus/connector/flow"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

const (
	// payloadAlign is the store's alignment, and the size of a payload's header.
	// A payload is charged for both.
	payloadAlign = 64

	// minWindowBytes is the smallest default byte window of an edge.
	minWindowBytes = 4 << 10

	// Latency is sampled: the first of each stream, then one in so many.
	latencySampleFirst = 64
	latencySampleEvery = 64
)

// edge joins two stages, or a stage and the caller.
type edge struct {
	name        string // "from->to"
	index       int    // in graph.edges and Request.flows
	in          int    // in stage.in of its consumer, or graph.results
	spec        Edge
	from, to    *stage // nil for the caller
	window      uint64 // deliveries
	windowBytes int64
	limit       uint64 // if fed: deliveries that may be unfinished
	fed         bool   // the host has numbered its deliveries: see flow.feed
	toOwner     bool   // it carries the inputs of requests to their host
	device      bool   // its payloads may have tensors in GPU memory
	dropped     atomic.Int64
	duplicates  atomic.Int64
	latency     latency
	path        *connflow.Path // through its connector; nil: payloads travel by the store

	sent sent // by requests that are forgotten; guarded by Bus.mu
}

// sent counts the deliveries of a producer. Each flow has its own, under the
// lock of its outputs, and the edge adds it when the request is forgotten: so a
// delivery updates no shared counter.
type sent struct {
	deliveries int64 // with a payload
	bytes      int64
	inline     int64
	direct     int64 // on direct paths
	copies     int64
	spilled    int64
}

func (s *sent) add(o sent) {
	s.deliveries += o.deliveries
	s.bytes += o.bytes
	s.inline += o.inline
	s.direct += o.direct
	s.copies += o.copies
	s.spilled += o.spilled
}

// queues reports whether deliveries without credit wait in a queue instead of
// blocking the producer: because the policy drops from the queue, or because the
// producer is one actor for many requests, which must not wait for one of them.
func (e *edge) queues() bool {
	return e.spec.Policy == DropOldest || (e.from != nil && e.from.shared())
}

// direct reports whether the streams of the edge may take a direct path. A payload with tensors in
// GPU memory cannot be copied, so a node that forwards it needs the host at both ends.
func (e *edge) direct() bool { return e.once() && !e.device }

// once reports whether every delivery on the edge is handled at most once, one
// at a time, by one process for the whole request, whose death ends the request:
// then no process has to remember deliveries for a repeat. For a stage without
// state the host repeats the deliveries of a dead process, so it has to see them.
// The host also has to see the deliveries of an edge that drops or has a connector:
// it has the queue and the connector.
func (e *edge) once() bool {
	ends := func(st *stage) bool {
		return st == nil || (st.remote != nil && st.spec.State == StateRequest && !st.spec.Replay)
	}
	return e.spec.Policy != DropOldest && e.spec.Connector == nil && ends(e.from) && ends(e.to) && (e.to == nil || !e.to.spec.Remote.Join)
}

// holders is how many byte windows of this edge may be in use at once: one for
// each request that can be open at its consumer, and as many again if the edge
// has queues.
func (e *edge) holders(maxRequests int) int64 {
	n := int64(maxRequests)
	if e.to != nil {
		n = int64(e.to.spec.Replicas) * int64(e.to.spec.MaxInflight)
	}
	if e.queues() {
		n *= 2
	}
	return n
}

// inlineBytes is the largest payload that travels inside its delivery on an edge.
func (b *Bus) inlineBytes(e *edge) int {
	if n := e.spec.InlineBytes; n != 0 {
		return min(max(n, 0), wire.MaxInline)
	}
	return b.opts.InlineBytes
}

// mostInline is the largest payload that travels inside its delivery on one of the edges.
func (b *Bus) mostInline(edges []*edge) (most int) {
	for _, e := range edges {
		most = max(most, b.inlineBytes(e))
	}
	return most
}

// charge is the part of the byte window that a payload of a price takes: a payload that does not fit
// takes the whole window.
func (e *edge) charge(price int64) int64 { return min(price, e.windowBytes) }

// exceedsWindow reports whether a payload of a price is larger than the byte window.
func (e *edge) exceedsWindow(price int64) bool { return price > e.windowBytes }

// price is the credit for a payload of n bytes: the space that it takes in the
// store, with alignment and header. Small reservations are rounded up to the
// size that the store grants.
func (b *Bus) price(n int) int64 {
	if n > b.opts.InlineBytes {
		n = b.writer.SpaceBytes(n)
	}
	return (int64(n)+payloadAlign-1)&^(payloadAlign-1) + payloadAlign
}

// latency gathers how long deliveries take from being sent to being handled.
type latency struct {
	mu lockorder.Mutex[lockorder.Latency]
	h  *hdrhistogram.Histogram // nanoseconds; made with the first sample
}

// latencyMax is the longest latency that is recorded; longer ones count as this.
const latencyMax = int64(100 * time.Second)

func (l *latency) record(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h == nil {
		l.h = hdrhistogram.New(100, latencyMax, 2)
	}
	// In range by construction: the error cannot happen.
	_ = l.h.RecordValue(min(max(int64(d), 100), latencyMax))
}

func (l *latency) quantiles() (p50, p99 time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h == nil {
		return 0, 0
	}
	return time.Duration(l.h.ValueAtQuantile(50)), time.Duration(l.h.ValueAtQuantile(99))
}
