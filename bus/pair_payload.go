package bus

import (
	"errors"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/duplex"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// queue sends an answer, or a word on a stream. That the peer is gone is for
// run to find out.
func (p *pair) queue(m wire.Message) {
	if d := p.connection(); d != nil {
		_ = d.Send(m)
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
	d := p.connection()
	return d != nil && d.TrySend(m) == nil
}

// leaving implements feeder.
func (p *pair) leaving() bool { return p.link.leaving() }

func (p *pair) connection() *duplex.Duplex {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.duplex
}

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
		to := p.connection()
		if err := to.Send(m); err != nil && !to.Gone() { // of one that has hung up, end returns it
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
	to := p.connection()
	if err := to.Offer(number, mem); err != nil && !to.Gone() {
		return fmt.Errorf("offer memory to %s: %w", p.describe(), err)
	}
	return nil
}

// hideMemory implements teller.
func (p *pair) hideMemory(number uint32) {
	if to := p.connection(); to != nil {
		_ = to.Forget(number) // a peer that is gone forgets everything
	}
}

// Message implements duplex.Handler.
func (p *pair) Message(m wire.Message, mayWait bool) error {
	p.link.heard.from(&p.looks)
	switch m := m.(type) {
	case *wire.Deliver:
		return p.deliver(m, mayWait)
	case *wire.Finish:
		return p.finished(m)
	case *wire.Release:
		return p.released(m.Delivery)
	case *wire.Lent:
		return p.lent(m.Delivery)
	case *wire.Streamed:
		if a := p.link.arrivals(m.Source); a != nil {
			return a.streamed(p, m.Edge, m.Deliveries)
		}
		return nil // it is over here
	}
	return fmt.Errorf("%w: %v from a peer", wire.ErrProtocol, m.Kind())
}

// deliver hands a delivery to whom it is for.
func (p *pair) deliver(m *wire.Deliver, mayWait bool) error {
	if !mayWait && m.Flags&wire.FlagInline == 0 {
		if seg, _ := p.known(m.Segment); seg == nil {
			return duplex.ErrWait
		}
	}
	d, err := newFed(m, p, p.segment)
	if err != nil {
		return err
	}
	faultpoint.Hit("node-delivered-direct")
	a := p.link.arrivals(m.Source)
	if a == nil {
		d.discard() // its request is over, which the peer learns
		return nil
	}
	return a.direct(p, m.Edge, d)
}

// lastWords is how long it may take to read what a process that is dead has sent.
const lastWords = 100 * time.Millisecond

// segment finds a segment of the peer's, and waits for one that is on its way. A
// child of a peer that is dead may keep the socket open, so that its end never
// comes.
func (p *pair) segment(number uint32) *segment {
	dead := p.proc.Done()
	var late <-chan time.Time
	for {
		seg, come := p.known(number)
		if seg != nil {
			return seg
		}
		select {
		case <-come:
		case <-p.duplex.Listening(): // what has come is known by now
			seg, _ = p.known(number)
			return seg
		case <-dead:
			dead, late = nil, time.After(lastWords)
		case <-late:
			return nil
		case <-p.closed:
			return nil
		}
	}
}

// known finds a segment that has come, and is closed when another one does.
func (p *pair) known(number uint32) (seg *segment, come <-chan struct{}) {
	p.mu.Lock()
	come = p.come // first, so that one that comes meanwhile is not missed
	p.mu.Unlock()
	return p.account.memory(number), come
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
