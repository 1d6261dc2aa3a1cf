package node

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// expect handles the message Expect: the deliveries of a stream may come from a peer.
func (l *link) expect(m *wire.Expect) error {
	p := l.peers.receiver(m.Peer)
	if p == nil {
		return fmt.Errorf("%w: deliveries are to be expected from node %d, which was not introduced", wire.ErrProtocol, m.Peer)
	}
	a := l.resequencerOf(m.Source)
	if a == nil {
		return nil // it has ended
	}
	if err := a.expect(m.Edge, p); err != nil {
		return err
	}
	select {
	case <-p.ended: // the peer is gone: the host keeps relaying
		if p.met.Load() { // otherwise peerGone fails the request: an unmet peer has sent no length of its streams
			a.relayOnly(m.Edge)
		}
		return nil
	default:
	}
	faultpoint.Hit("node-expecting")
	l.Queue(&wire.Expecting{Source: m.Source, Edge: m.Edge})
	return nil
}

// direct handles the message Direct: the deliveries of an edge take the direct path to a peer that
// expects them, as soon as the peer is met.
func (l *link) direct(m *wire.Direct) error {
	p := l.peers.sender(m.Peer)
	var rs *routes
	if t, rr := l.work.find(m.Source); t != nil {
		rs = &t.out
	} else if rr != nil {
		rs = &rr.out
	}
	switch {
	case p == nil:
		return fmt.Errorf("%w: deliveries are to go to node %d, which was not introduced", wire.ErrProtocol, m.Peer)
	case rs == nil:
		return nil // it has ended
	case int(m.Edge) >= len(rs.edges):
		return fmt.Errorf("%w: edge %d of %d", wire.ErrProtocol, m.Edge, len(rs.edges))
	}
	faultpoint.Hit("node-routed")
	p.whenMet(func() { rs.openDirect(m.Edge, &route{peer: p, source: m.PeerSource, edge: m.PeerEdge}) })
	return nil
}

// peerGone tells the streams from a peer that it is gone. If the peer process lives, the requests with
// unfinished deliveries to it fail here, since the host does not see the broken link.
func (l *link) peerGone(p *peerLink, died bool, cause error) {
	all := l.streams()
	for _, e := range all {
		e.in.peerGone(p, died, fmt.Errorf("deliveries from %s: %w", p.describe(), cause))
	}
	select {
	case <-l.done: // link.run ends all tasks and requests
		return
	default:
	}
	if died {
		return
	}
	for _, e := range all {
		if edge, seq, found := e.out.unfinished(p); found {
			err := fmt.Errorf("deliveries to %s: %w", p.describe(), cause)
			e.in.req.Control().End(bus.Failed, &bus.StageError{Edge: e.outputs[edge].Name, Seq: seq, Err: err})
		}
	}
}

// closePeers closes the links to all peers, and has no more peers added.
func (l *link) closePeers() {
	l.peers.close()
	for _, p := range l.peers.list() {
		p.close()
	}
}
