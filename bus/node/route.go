package node

import (
	"errors"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// routes say where the deliveries go that a task of this process emits, or that
// are the inputs of a request it submitted: to the host, until that says of an
// edge that they go to another node.
type routes struct {
	link   *link
	source uint32 // as the host knows it

	mu     lockorder.Mutex[lockorder.Routes]
	edges  []outgoingEdge
	single [1]outgoingEdge // backs edges where there is but one
}

// outgoingEdge is one edge of a source.
type outgoingEdge struct {
	nextSeq    uint64 // the sequence behind the last delivery
	to         *route // nil: through the host
	directFrom uint64 // the sequence from which on deliveries may go to the peer
	ended      bool   // nothing more goes out, as far as others are told
}

// route leads to a task of another node, or to a request that it submitted.
type route struct {
	peer   *peerLink
	source uint32 // as the peer knows them
	edge   uint16

	deliveries, bytes uint64 // that went this way
	lost              bool   // some after the pair had ended; guarded by the pair
}

// init makes rs ready for so many edges.
func (rs *routes) init(l *link, source uint32, edges int) *routes {
	rs.link, rs.source = l, source
	if rs.edges = rs.single[:]; edges != 1 {
		rs.edges = make([]outgoingEdge, edges)
	}
	return rs
}

// openDirect has the deliveries of an edge go to another node from now on.
func (rs *routes) openDirect(edge uint16, to *route) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if e := &rs.edges[edge]; e.to == nil && !e.ended {
		e.to = to
	}
}

// relays reports whether the delivery of a number goes through the host. If so, it will also when
// the edge is opened before the delivery is put: until then deliveries with lower numbers are put.
func (rs *routes) relays(edge int, seq uint64) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	e := &rs.edges[edge]
	if e.to != nil {
		return false
	}
	e.directFrom = seq + 1
	return true
}

// put sends a delivery on its way. The calls for one edge come one after the
// other. When it is returned, nobody needs its payload any more.
func (rs *routes) put(d *bus.Delivery, edge int, returned func()) error {
	rs.mu.Lock()
	e := &rs.edges[edge]
	e.nextSeq = d.Seq + 1
	to := e.to
	if d.Seq < e.directFrom {
		to = nil
	}
	if to != nil {
		to.deliveries++
		to.bytes += uint64(d.Size())
	}
	rs.mu.Unlock()
	if to == nil {
		return rs.link.put(rs.source, d, edge, returned)
	}
	last := d.EOS
	h := newHold(d, returned)
	h.Source, h.Edge, h.Seq = rs.source, edge, d.Seq
	err := to.peer.put(to, d, h)
	if last && (err == nil || errors.Is(err, bus.ErrNotTaken)) {
		rs.endStream(edge)
	}
	return err
}

// endStream tells host and peer how long a stream was of which a part went to the
// peer.
func (rs *routes) endStream(edge int) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	e := &rs.edges[edge]
	ended := e.ended
	e.ended = true
	if ended || e.to == nil || e.to.deliveries == 0 {
		return
	}
	e.to.peer.Queue(&wire.Streamed{Source: e.to.source, Edge: e.to.edge, Deliveries: e.nextSeq, Bytes: e.to.bytes})
	rs.link.Queue(&wire.Streamed{Source: rs.source, Edge: uint16(edge), Deliveries: e.nextSeq, Bytes: e.to.bytes})
}

// unfinished finds an edge that leads to a pair that has ended, whose peer lives, and
// that was not done with.
func (rs *routes) unfinished(p *peerLink) (edge int, seq uint64, found bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for i := range rs.edges {
		if e := &rs.edges[i]; e.to != nil && e.to.peer == p && (!e.ended || p.hasUnfinished(e.to, rs.source, i)) {
			return i, e.nextSeq, true
		}
	}
	return 0, 0, false
}

// hasUnfinished reports whether the peer has not finished all that was sent on an edge.
func (p *peerLink) hasUnfinished(to *route, source uint32, edge int) bool {
	owes := false
	p.account.Each(func(h *accounts.Hold) {
		owes = owes || h.Source == source && h.Edge == edge && h.Why() == accounts.Sent
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	return owes || to.lost
}

// endStreams ends all streams: nothing more is emitted.
func (rs *routes) endStreams() {
	for edge := range rs.edges {
		rs.endStream(edge)
	}
}
