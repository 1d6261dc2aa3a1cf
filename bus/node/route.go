package node

import (
	"errors"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// routes are the ways out for the emissions of a task, or for the inputs of a submitted request. An
// edge leads to the host until the host opens a direct path to another node.
type routes struct {
	link   *link
	source uint32 // the number in messages to the host

	mu     lockorder.Mutex[lockorder.Routes]
	edges  []outgoingEdge
	single [1]outgoingEdge // backs edges if there is only one
}

// outgoingEdge is one edge of a source.
type outgoingEdge struct {
	nextSeq    uint64 // the next sequence number
	to         *route // nil: through the host
	directFrom uint64 // the first sequence number that may take the direct path
	ended      bool   // its length was sent, if needed
}

// route is the direct path to a task of another node, or to a request that it submitted.
type route struct {
	peer   *peerLink
	source uint32 // in messages to the peer
	edge   uint16

	deliveries, bytes uint64 // sent on the path
	lost              bool   // a delivery was refused, since the link had ended; guarded by the peer link's mu
}

// init prepares rs for so many edges.
func (rs *routes) init(l *link, source uint32, edges int) *routes {
	rs.link, rs.source = l, source
	if rs.edges = rs.single[:]; edges != 1 {
		rs.edges = make([]outgoingEdge, edges)
	}
	return rs
}

// openDirect has the later deliveries of an edge take a direct path.
func (rs *routes) openDirect(edge uint16, to *route) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if e := &rs.edges[edge]; e.to == nil && !e.ended {
		e.to = to
	}
}

// relays reports whether the delivery with a sequence number goes through the host. If so, it does
// even if openDirect is called before the delivery is put, and so do all deliveries with lower
// numbers.
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

// put sends a delivery. The calls for one edge must be sequential. returned is called when no other
// process needs the payload.
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

// endStream sends the length of a stream that was direct in part, to the host and to the peer.
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

// unfinished finds an edge with a direct path to a peer whose link has ended while the process
// lives: an edge that has not ended, or with deliveries that the peer has not finished.
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

// hasUnfinished reports whether the peer has not finished all deliveries of a path.
func (p *peerLink) hasUnfinished(to *route, source uint32, edge int) bool {
	owes := false
	p.account.Each(func(h *accounts.Hold) {
		owes = owes || h.Source == source && h.Edge == edge && h.State() == accounts.Sent
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
