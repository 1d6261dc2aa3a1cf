package bus

import (
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// queue sends an answer, or a word on a stream. A pair that cannot send it ends, as one
// whose peer is gone does, which run notices.
func (p *pair) queue(m wire.Message) {
	if sender := p.connection(); sender != nil {
		if err := sender.Queue(m); err != nil && !isGone(err) {
			sender.Fail(err)
		}
	}
}

// rest implements feeder.
func (p *pair) rest(m wire.Message) { p.queue(m) }

// lends implements feeder.
func (p *pair) lends(payload *foreign) {
	p.borrowed.Add(1)
	payload.free = p.unborrow
}

// tell implements feeder.
func (p *pair) tell(m wire.Message) bool {
	sender := p.connection()
	return sender != nil && sender.Now(m) == nil
}

// leaving implements feeder.
func (p *pair) leaving() bool { return p.link.leaving() }

// put sends a delivery to the peer. When it is returned, nobody needs its
// payload any more. To a peer that is gone everything is returned at once: the
// host ends the request, or peerGone if the peer lives.
func (p *pair) put(to *route, d *Delivery, h *hold) error {
	m := &wire.Deliver{
		Source: to.source, Edge: to.edge, Codec: uint32(d.PayloadCodec()), Attempt: d.Attempt,
		Seq: d.Seq, Size: uint64(len(d.Bytes())), Key: d.Key, Attrs: d.Attrs,
	}
	if d.EOS {
		m.Flags |= wire.FlagLast
	}
	at, err := d.locate(int(p.link.welcome.InlineBytes))
	if err != nil {
		return err
	}
	defer at.release() // the peer has it mapped, or will not
	if at.seg == nil {
		m.Flags |= wire.FlagInline
		m.Payload = d.Bytes()
	}
	m.Offset = at.offset
	err = p.account.hold(h, at, func(number, segment uint32) error {
		m.Delivery, m.Segment = number, segment
		faultpoint.Hit("node-before-direct")
		if err := p.send(m); err != nil {
			return fmt.Errorf("deliver to %s: %w", p.describe(), err)
		}
		faultpoint.Hit("node-direct")
		return nil
	})
	if errors.Is(err, errOver) {
		p.mu.Lock()
		to.lost = true
		p.mu.Unlock()
		go h.returned() // not under the locks of the sender of the delivery
		return nil
	}
	return err
}

// showMemory implements teller.
func (p *pair) showMemory(number uint32, mem *shmstore.Segment) error {
	if err := p.send(&wire.Segment{Segment: number, Bytes: uint64(mem.Size())}, mem.FD()); err != nil {
		return fmt.Errorf("offer memory to %s: %w", p.describe(), err)
	}
	return nil
}

// send sends what a delivery needs. To a peer that is gone it does nothing: end returns
// what it had. A peer that does not read is given up: what it waits for would never come.
func (p *pair) send(m wire.Message, fds ...int) error {
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

// hideMemory implements teller.
func (p *pair) hideMemory(number uint32) {
	p.queue(&wire.Forget{Segment: number})
}

// finished is told that the work on a delivery is done. The payload may be
// needed beyond that.
func (p *pair) finished(m *wire.Finish) error {
	why, has := p.account.has(m.Delivery)
	switch {
	case !has && p.leaving(): // it was taken for given back
	case !has || why == whyKept:
		return fmt.Errorf("%w: delivery %d is not the peer's to finish", wire.ErrProtocol, m.Delivery)
	case m.Flags&wire.FinishKeep != 0:
		give(p.account.spend(m.Delivery, true, true))
	default:
		p.giveBack(m.Delivery)
	}
	return nil
}

// lent is told that the peer passes a payload on by reference.
func (p *pair) lent(id uint32) error {
	if !p.account.lend(id) && !p.leaving() {
		return fmt.Errorf("%w: delivery %d is not the peer's to pass on", wire.ErrProtocol, id)
	}
	return nil
}

// unborrow counts a payload less that lies in memory which the peer gave. After
// the last one, when the peer is gone, the host is told.
func (p *pair) unborrow() {
	if p.borrowed.Add(-1) == 0 {
		p.link.queue(&wire.Clear{Peer: p.node})
	}
}

// released is told that a payload is not needed any more.
func (p *pair) released(id uint32) error {
	why, has := p.account.has(id)
	switch {
	case !has && p.leaving():
	case !has || why != whyKept:
		return fmt.Errorf("%w: the payload of delivery %d was not kept, or was released before", wire.ErrProtocol, id)
	default:
		p.giveBack(id)
	}
	return nil
}

// giveBack ends a delivery that the peer needs no more.
func (p *pair) giveBack(id uint32) {
	if h := p.account.take(id); h != nil { // else this side has closed the pair
		faultpoint.Hit("node-direct-returned")
		p.account.back(h)
	}
}
