package node

import (
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Queue sends an answer, or the length of a stream. If it cannot be sent, the link fails, which run
// notices.
func (p *peerLink) Queue(m wire.Message) {
	if sender := p.connection(); sender != nil {
		if err := sender.Queue(m); err != nil && !isGone(err) {
			sender.Fail(err)
		}
	}
}

// QueueLater implements bus.Feeder.
func (p *peerLink) QueueLater(m wire.Message) { p.Queue(m) }

// Relays implements bus.Feeder.
func (p *peerLink) Relays() bool { return false }

// Leaving implements bus.Feeder.
func (p *peerLink) Leaving() bool { return p.link.Leaving() }

// put sends a delivery to the peer. A peer that is gone takes nothing: the host ends the request,
// or peerGone does if the peer process lives.
func (p *peerLink) put(to *route, d *bus.Delivery, h *accounts.Hold) error {
	m := &wire.Deliver{
		Source: to.source, Edge: to.edge, Codec: uint32(d.PayloadCodec()), Attempt: d.Attempt,
		Seq: d.Seq, Size: uint64(d.Size()), Key: d.Key, Attrs: d.Attrs,
	}
	if d.EOS {
		m.Flags |= wire.FlagLast
	}
	at, err := d.Control().Locate(bus.Reader{InlineBytes: int(p.link.welcome.InlineBytes)})
	if err != nil {
		return err
	}
	if at.Seg == nil {
		m.Flags |= wire.FlagInline
		m.Payload = d.Bytes()
	}
	m.Offset = at.Offset
	err = p.account.AddAndSend(h, at, func(number, segment uint32) error {
		m.Delivery, m.Segment = number, segment
		faultpoint.Hit("node-before-direct")
		if err := p.send(m); err != nil {
			return fmt.Errorf("deliver to %s: %w", p.describe(), err)
		}
		faultpoint.Hit("node-direct")
		return nil
	})
	if errors.Is(err, accounts.ErrClosed) {
		p.mu.Lock()
		to.lost = true
		p.mu.Unlock()
		return bus.ErrNotTaken
	}
	return err
}

// ShowMemory implements accounts.Announcer.
func (p *peerLink) ShowMemory(number uint32, mem *shmstore.Segment) error {
	if err := p.send(&wire.Segment{Segment: number, Bytes: uint64(mem.Size())}, mem.FD()); err != nil {
		return fmt.Errorf("offer memory to %s: %w", p.describe(), err)
	}
	return nil
}

// send sends a message that a delivery needs. If the peer is gone it does nothing: handleDisconnect
// returns the peer's deliveries. A peer that does not read is given up, since the answers for which
// this side would wait never come.
func (p *peerLink) send(m wire.Message, fds ...int) error {
	to := p.connection()
	err := to.Queue(m, fds...)
	if isGone(err) {
		return nil
	}
	if errors.Is(err, peer.ErrBacklog) {
		to.Fail(err)
	}
	return err
}

// HideMemory implements accounts.Announcer.
func (p *peerLink) HideMemory(number uint32) {
	p.Queue(&wire.Forget{Segment: number})
}

// finished handles the message Finish: the peer has handled a delivery. With FinishKeep the peer
// still reads the payload.
func (p *peerLink) finished(m *wire.Finish) error {
	why, has := p.account.Has(m.Delivery)
	switch {
	case !has && p.Leaving(): // giveBackAll has returned it
	case !has || why == accounts.Kept:
		return fmt.Errorf("%w: delivery %d is not the peer's to finish", wire.ErrProtocol, m.Delivery)
	case m.Flags&wire.FinishKeep != 0:
		p.account.Handled(m.Delivery)
		returnCredit(&p.account, m.Delivery, true)
	default:
		p.giveBack(m.Delivery)
	}
	return nil
}

// released handles the message Release: the peer no longer reads a kept payload.
func (p *peerLink) released(id uint32) error {
	why, has := p.account.Has(id)
	switch {
	case !has && p.Leaving():
	case !has || why != accounts.Kept:
		return fmt.Errorf("%w: the payload of delivery %d was not kept, or was released before", wire.ErrProtocol, id)
	default:
		p.giveBack(id)
	}
	return nil
}

// giveBack ends a delivery that the peer no longer needs.
func (p *peerLink) giveBack(id uint32) {
	p.account.GiveBack(id, func() { faultpoint.Hit("node-direct-returned") }) // does nothing if this side has closed the link
}
