package node

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// reusedMessages are the two most frequent messages, decoded into the same memory each time.
type reusedMessages struct {
	deliver wire.Deliver
	finish  wire.Finish
}

func (r *reusedMessages) parse(h wire.Header, body []byte) (wire.Message, error) {
	if h.Kind == wire.KindDeliver {
		return &r.deliver, wire.Decode(body, &r.deliver)
	}
	if h.Kind == wire.KindFinish {
		return &r.finish, wire.Decode(body, &r.finish)
	}
	return wire.Parse(h, body)
}

// handle handles one message, on the goroutine of run or on a goroutine that polls. It owns the
// descriptors.
func (p *peerLink) handle(sender *peer.Sender, h wire.Header, body []byte, fds []int) error {
	m, err := p.reused.parse(h, body)
	if err != nil {
		process.CloseAll(fds)
		return err
	}
	if m, is := m.(*wire.Lane); is {
		if err := p.conn.OpenLane(m, fds[0], hostnode.Lane(p.link.wait)); err != nil {
			return fmt.Errorf("meet a peer: %w", err)
		}
		p.markMet(sender)
		return nil
	}
	if p.connection() == nil {
		process.CloseAll(fds)
		return fmt.Errorf("%w: %v instead of lane", wire.ErrProtocol, h.Kind)
	}
	p.link.lastActive.Active(&p.active)
	switch m := m.(type) {
	case *wire.Segment:
		return p.mapSegment(m, fds[0])
	case *wire.Forget:
		if seg := p.account.RemovePeerSegment(m.Segment); seg != nil {
			seg.Release()
		}
		return nil
	case *wire.Deliver:
		return p.deliver(m)
	case *wire.Finish:
		return p.finished(m)
	case *wire.Release:
		return p.released(m.Delivery)
	case *wire.Streamed:
		if a := p.link.resequencerOf(m.Source); a != nil {
			return a.streamed(p, m.Edge, m.Deliveries)
		}
		return nil // it has ended here
	}
	process.CloseAll(fds)
	return fmt.Errorf("%w: %v from a peer", wire.ErrProtocol, h.Kind)
}

// maxPeerSegments bounds the known segments of a peer: those of its stores, and those of single
// payloads.
const maxPeerSegments = 4096

// mapSegment handles the message Segment: it maps memory of the peer.
func (p *peerLink) mapSegment(m *wire.Segment, fd int) error {
	mem, err := shmstore.OpenFillingSegment("peer", fd, int64(m.Bytes))
	if err != nil {
		return err
	}
	if !p.account.AddPeerSegment(m.Segment, accounts.Lasting(mem, nil), maxPeerSegments) {
		mem.Close()
		return fmt.Errorf("%w: segment %d came before, or is one of more than %d", wire.ErrProtocol, m.Segment, maxPeerSegments)
	}
	return nil
}

// deliver passes a delivery to its stream.
func (p *peerLink) deliver(m *wire.Deliver) error {
	d, err := bus.DeliveryOf(m, p, p.account.PeerSegment)
	if err != nil {
		return err
	}
	faultpoint.Hit("node-delivered-direct")
	a := p.link.resequencerOf(m.Source)
	if a == nil {
		d.Control().Discard() // its request has ended: the peer gets the delivery back
		return nil
	}
	return a.direct(p, m.Edge, d)
}
