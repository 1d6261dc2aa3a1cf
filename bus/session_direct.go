package bus

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// directFlow is a flow whose deliveries go from one node to another, without
// the host. The host keeps the request: its slots, its end, and the ends of its
// streams.
type directFlow struct {
	flow     *flow
	producer *source
	out      int // index of the edge among the producer's
	consumer *source
	edge     int  // ... and as the consumer knows it
	told     bool // the producer was

	// What went past the host, as the producer said last; written by past.learn.
	deliveries, bytes atomic.Int64
	counted           bool // all of it is in the flow's own figures; guarded by the outlet's mutex
}

// directFrom looks whether what follows a delivery to the client could come past the
// host, from the process that sent it. It is asked for with the second
// delivery of a stream: for shorter ones it would not pay.
func (s *session) directFrom(to *source, d *Delivery, edge int) *directFlow {
	f := d.flow
	if d.Seq == 0 || d.EOS || d.put == nil || d.put.source == nil || f.direct.Load() != nil {
		return nil
	}
	from := d.put.source
	df := &directFlow{flow: f, producer: from, out: slices.IndexFunc(from.ports, func(p port) bool { return p.index == f.edge.index }), consumer: to, edge: edge}
	if out := from.out(); df.out < 0 || out == nil || out.req != f.req || !f.edge.once() || !s.canLane() || !from.sess.canLane() {
		return nil
	}
	if !f.direct.CompareAndSwap(nil, df) || !s.srv.circle.introduce(from.sess, s) {
		return nil
	}
	return df
}

func (s *session) canLane() bool {
	_, begins := s.past.can()
	return begins
}

// once reports whether every delivery on the edge is handled at most once, by a
// process that stays the same for the request, one by one, and whose death ends
// the request: such deliveries need nobody who remembers them. The death of a
// stage without state would cost only the deliveries that the host knows of.
func (e *edge) once() bool {
	ends := func(st *stage) bool {
		return st == nil || (st.remote != nil && st.spec.State == StateRequest && !st.spec.Replay)
	}
	return e.spec.Policy != DropOldest && e.spec.Connector == nil && ends(e.from) && ends(e.to) && (e.to == nil || !e.to.spec.Remote.Join)
}

// expecting tells the producer that the client waits for its deliveries.
func (s *session) expecting(m *wire.Expecting) error {
	if _, err := s.source(m.Source); err != nil {
		return err
	}
	if df := s.past.telling(m.Source, int(m.Edge)); df != nil { // else it is over
		df.producer.sess.past.goes()
		df.producer.sess.queue(&wire.Direct{
			Source: df.producer.id, Edge: uint16(df.out), PeerEdge: m.Edge, Peer: s.node, PeerSource: m.Source,
		})
	}
	return nil
}

// streamed ends a stream of which a part went past the host, behind what came
// through it.
func (s *session) streamed(m *wire.Streamed) error {
	src, err := s.source(m.Source)
	if err != nil || src == nil {
		return err
	}
	if int(m.Edge) >= len(src.ports) {
		return fmt.Errorf("%w: edge %d of %d", wire.ErrProtocol, m.Edge, len(src.ports))
	}
	var df *directFlow
	if out := src.out(); out != nil {
		df = out.req.flows[src.ports[m.Edge].index].direct.Load()
	}
	if df == nil || df.producer != src {
		return fmt.Errorf("%w: nothing was to go from source %d to another process", wire.ErrProtocol, src.id)
	}
	deliveries, bytes := m.Deliveries, m.Bytes
	return src.do(orWaive(func() error { return df.end(deliveries, bytes) }))
}

// end ends the stream at the host, and tells the consumer how long it was.
func (df *directFlow) end(deliveries, bytes uint64) error {
	o := df.producer.out()
	o.mu.Lock()
	f := df.flow
	ended, through := f.ended, f.seq
	if !ended && deliveries >= through {
		n := believed(deliveries - through)
		f.sent.add(sent{deliveries: n, direct: n, bytes: believed(bytes)})
		df.counted = true
	}
	o.mu.Unlock()
	if ended || deliveries < through {
		return fmt.Errorf("%w: %s is said to have ended with %d deliveries, %d have come through the host (ended: %v)",
			wire.ErrProtocol, f.edge.name, deliveries, through, ended)
	}
	df.producer.sess.past.learn(df, deliveries-through, bytes)
	df.consumer.sess.queue(&wire.Streamed{Source: df.consumer.id, Edge: uint16(df.edge), Deliveries: deliveries, Bytes: bytes})
	o.endStream(f)
	return nil
}
