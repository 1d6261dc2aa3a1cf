package bus

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/peer"
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
}

// straighten looks whether what follows a delivery to the client could come
// straight from the process that sent it. It is asked for with the second
// delivery of a stream: for shorter ones it would not pay.
func (s *session) straighten(to *source, d *Delivery, edge int) *directFlow {
	f := d.flow
	if d.Seq == 0 || d.EOS || d.put == nil || d.put.source == nil || f.direct.Load() != nil {
		return nil
	}
	from := d.put.source
	df := &directFlow{flow: f, producer: from, out: slices.Index(from.emitter.out.edges, f.edge), consumer: to, edge: edge}
	if df.out < 0 || from.emitter.out.req != f.req || !f.edge.once() || !s.canLane() || !from.sess.canLane() {
		return nil
	}
	if !f.direct.CompareAndSwap(nil, df) || !s.srv.introduce(from.sess, s) {
		return nil
	}
	return df
}

func (s *session) canLane() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lanes && !s.gone
}

// once reports whether every delivery on the edge is handled at most once, by a
// process that stays the same for the request, one by one: such deliveries need
// nobody who remembers them.
func (e *edge) once() bool {
	ends := func(st *stage) bool {
		return st == nil || (st.remote != nil && st.remote.sticky() && !st.spec.Replay && (st.spec.State == StateRequest || st.spec.Attempts == 0))
	}
	return e.spec.Policy != DropOldest && e.spec.Fault == nil && ends(e.from) && ends(e.to) && (e.to == nil || !e.to.spec.Remote.Join)
}

// introduce makes two nodes known to each other, unless they are. It reports
// false if that is not possible.
func (s *Server) introduce(a, b *session) bool {
	if a.node > b.node {
		a, b = b, a
	}
	s.pairsMu.Lock()
	defer s.pairsMu.Unlock()
	key := [2]uint32{a.node, b.node}
	if done, known := s.pairs[key]; known {
		return done
	}
	ends, err := peer.Sockets()
	s.pairs[key] = err == nil
	if err != nil {
		s.log.Warn("two processes cannot be introduced: the host goes on relaying between them", slog.Any("error", err))
		return false
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	lane := binary.LittleEndian.Uint64(id[:])
	faultpoint.Hit("host-introduces")
	a.queue(&wire.Introduce{Peer: b.node, PID: uint32(b.proc.PID()), Lane: lane, Side: 0, Name: b.name}, ends[0], b.proc.FD())
	b.queue(&wire.Introduce{Peer: a.node, PID: uint32(a.proc.PID()), Lane: lane, Side: 1, Name: a.name}, ends[1], a.proc.FD())
	closeAll(ends[:]) // they have their own
	return true
}

// expecting tells the producer that the client waits for its deliveries.
func (s *session) expecting(m *wire.Expecting) error {
	if _, err := s.source(m.Source); err != nil {
		return err
	}
	s.mu.Lock()
	var df *directFlow
	for _, d := range s.expects[m.Source] {
		if d.edge == int(m.Edge) && !d.told {
			df, d.told = d, true
		}
	}
	s.mu.Unlock()
	if df != nil { // else it is over
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
	if int(m.Edge) >= len(src.emitter.out.edges) {
		return fmt.Errorf("%w: edge %d of %d", wire.ErrProtocol, m.Edge, len(src.emitter.out.edges))
	}
	df := src.emitter.out.req.flow(src.emitter.out.edges[m.Edge]).direct.Load()
	if df == nil || df.producer != src {
		return fmt.Errorf("%w: nothing was to go from source %d to another process", wire.ErrProtocol, src.id)
	}
	deliveries, bytes := m.Deliveries, m.Bytes
	return src.do(orWaive(func() error { return df.end(deliveries, bytes) }))
}

// end ends the stream at the host, and tells the consumer how long it was.
func (df *directFlow) end(deliveries, bytes uint64) error {
	o := df.producer.emitter.out
	o.mu.Lock()
	f := df.flow
	ended, through := f.ended, f.seq
	if !ended && deliveries >= through {
		f.sent.deliveries += int64(deliveries - through)
		f.sent.direct += int64(deliveries - through)
		f.sent.bytes += int64(bytes)
	}
	o.mu.Unlock()
	if ended || deliveries < through {
		return fmt.Errorf("%w: %s is said to have ended with %d deliveries, %d have come through the host (ended: %v)",
			wire.ErrProtocol, f.edge.name, deliveries, through, ended)
	}
	df.consumer.sess.queue(&wire.Streamed{Source: df.consumer.id, Edge: uint16(df.edge), Deliveries: deliveries, Bytes: bytes})
	o.endStream(f)
	return nil
}
