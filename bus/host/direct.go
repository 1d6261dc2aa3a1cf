package host

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// directFlow is a flow whose deliveries go directly from one node to another. The host keeps the
// request: its slots, its end, and the ends of its streams.
type directFlow struct {
	stream    bus.Stream
	producer  *source
	out       int // index of the edge among the producer's outputs
	consumer  *source
	edge      int  // index of the edge among the consumer's inputs
	announced bool // the producer was told where to send

	// Deliveries and bytes over the direct path, as the producer last reported; written by
	// directPaths.update.
	deliveries, bytes atomic.Int64
}

// Sums implements bus.DirectPath.
func (df *directFlow) Sums() (deliveries, bytes int64) { return df.deliveries.Load(), df.bytes.Load() }

// directFlowOf returns the direct flow of a stream; nil: the stream goes through the host.
func directFlowOf(st bus.Stream) *directFlow {
	df, _ := st.DirectPath().(*directFlow)
	return df
}

// directFrom returns a new direct flow if the deliveries after this one can go directly from the
// process that sent it to the client; else nil. It is tried at the second delivery of a stream: a
// shorter stream would not gain.
func (s *session) directFrom(to *source, d *bus.Delivery, edge int) *directFlow {
	p, put := d.Control().Origin().(*put)
	if d.Seq == 0 || d.EOS || !put || p.source == nil {
		return nil
	}
	st := d.Control().Stream()
	if st.DirectPath() != nil {
		return nil
	}
	from := p.source
	df := &directFlow{stream: st, producer: from, out: slices.IndexFunc(from.ports, func(p bus.Port) bool { return p.Index == st.Index }), consumer: to, edge: edge}
	if df.out < 0 || from.request() != st.Request || !s.canLane() || !from.sess.canLane() {
		return nil
	}
	if !st.OpenDirect(df) || !s.srv.introductions.introduce(from.sess, s) {
		return nil
	}
	return df
}

func (s *session) canLane() bool {
	_, begins := s.direct.state()
	return begins
}

// expecting tells the producer that the client is ready to receive its deliveries directly.
func (s *session) expecting(m *wire.Expecting) error {
	if _, err := s.source(m.Source); err != nil {
		return err
	}
	if df := s.direct.takeUnannounced(m.Source, int(m.Edge)); df != nil { // else the stream has ended
		df.producer.sess.direct.markUsed()
		df.producer.sess.queue(&wire.Direct{
			Source: df.producer.id, Edge: uint16(df.out), PeerEdge: m.Edge, Peer: s.node, PeerSource: m.Source,
		})
	}
	return nil
}

// streamed ends a stream of which some deliveries went directly, after those that came through the
// host.
func (s *session) streamed(m *wire.Streamed) error {
	src, err := s.source(m.Source)
	if err != nil || src == nil {
		return err
	}
	if int(m.Edge) >= len(src.ports) {
		return fmt.Errorf("%w: edge %d of %d", wire.ErrProtocol, m.Edge, len(src.ports))
	}
	var df *directFlow
	if req := src.request(); req != nil {
		df = directFlowOf(req.Control().Stream(src.ports[m.Edge]))
	}
	if df == nil || df.producer != src {
		return fmt.Errorf("%w: source %d has no such direct path", wire.ErrProtocol, src.id)
	}
	deliveries, bytes := clampTotal(m.Deliveries), clampTotal(m.Bytes)
	return src.do(orSkip(func() error { return df.closeStream(deliveries, bytes) }))
}

// closeStream ends the stream at the host, and tells the consumer its length.
func (df *directFlow) closeStream(deliveries, bytes int64) error {
	through, ended := df.stream.CloseDirect(uint64(deliveries), bytes, func(past uint64) {
		df.producer.sess.direct.update(df, past, uint64(bytes))
		df.consumer.sess.queue(&wire.Streamed{Source: df.consumer.id, Edge: uint16(df.edge), Deliveries: uint64(deliveries), Bytes: uint64(bytes)})
	})
	if ended || uint64(deliveries) < through {
		return fmt.Errorf("%w: %s is said to have ended with %d deliveries, %d have come through the host (ended: %v)",
			wire.ErrProtocol, df.stream.Edge, deliveries, through, ended)
	}
	return nil
}
