package node

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// expect prepares for deliveries of a stream that come from another node.
func (l *link) expect(m *wire.Expect) error {
	p := l.peers.receiver(m.Peer)
	if p == nil {
		return fmt.Errorf("%w: deliveries are to be expected from node %d, which was not introduced", wire.ErrProtocol, m.Peer)
	}
	a := l.resequencerOf(m.Source)
	if a == nil {
		return nil // it is over
	}
	if err := a.expect(m.Edge, p); err != nil {
		return err
	}
	select {
	case <-p.ended: // it is gone already: the host goes on relaying
		if p.met.Load() { // else peerGone fails the request: the peer did not say what comes from it
			a.relayOnly(m.Edge)
		}
		return nil
	default:
	}
	faultpoint.Hit("node-expecting")
	l.Queue(&wire.Expecting{Source: m.Source, Edge: m.Edge})
	return nil
}

// direct has the deliveries of an edge go to another node, which expects them,
// as soon as that has been met.
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
		return nil // it is over
	case int(m.Edge) >= len(rs.edges):
		return fmt.Errorf("%w: edge %d of %d", wire.ErrProtocol, m.Edge, len(rs.edges))
	}
	faultpoint.Hit("node-routed")
	p.whenMet(func() { rs.openDirect(m.Edge, &route{peer: p, source: m.PeerSource, edge: m.PeerEdge}) })
	return nil
}

// peerGone tells whoever expected something from a node that is gone. If it
// lives, whoever sent it something that it does not finish any more fails: the
// host does not know.
func (l *link) peerGone(p *peerLink, died bool, cause error) {
	all := l.streams()
	for _, e := range all {
		e.in.peerGone(p, died, fmt.Errorf("deliveries from %s: %w", p.describe(), cause))
	}
	select {
	case <-l.done: // what goes to others is nobody's any more
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

// closePeers ends the connections to other nodes. There will be no new ones.
func (l *link) closePeers() {
	l.peers.close()
	for _, p := range l.peers.list() {
		p.close()
	}
}
