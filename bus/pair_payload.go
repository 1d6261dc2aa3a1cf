package bus

import (
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/duplex"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/wire"
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
func (p *pair) put(to *route, d *Delivery, o *outgoing) error {
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
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil || p.left {
		to.lost = true
		go o.returned() // not under the locks of whoever sends
		return nil
	}
	if at.seg == nil {
		m.Flags |= wire.FlagInline
		m.Payload = d.Bytes()
	} else {
		if m.Segment, err = p.offerTo(at); err != nil {
			return err
		}
		m.Offset = at.offset
		if at.own {
			o.own = m.Segment
		}
	}
	p.last++
	m.Delivery = p.last
	p.sent[m.Delivery] = o
	faultpoint.Hit("node-before-direct")
	if err := p.duplex.Send(m); err != nil {
		if p.hungUp() {
			return nil // and end returns it
		}
		delete(p.sent, m.Delivery)
		return fmt.Errorf("deliver to %s: %w", p.describe(), err)
	}
	faultpoint.Hit("node-direct")
	return nil
}

// hungUp reports whether the peer has ended the connection.
func (p *pair) hungUp() bool { return p.duplex.Gone() }

// offerTo, with mu held, tells the peer of a segment unless it knows it.
func (p *pair) offerTo(at location) (uint32, error) {
	if number, known := p.offers[at.seg]; known && !at.own {
		return number, nil
	}
	p.offer++
	if !at.own {
		p.offers[at.seg] = p.offer
	}
	if err := p.duplex.Offer(p.offer, at.seg.mem); err != nil && !p.hungUp() {
		return 0, fmt.Errorf("offer memory to %s: %w", p.describe(), err)
	}
	return p.offer, nil
}

// withdraw tells the peer that nothing more will lie in a segment that it may
// know from here.
func (p *pair) withdraw(seg *segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number, known := p.offers[seg]; known {
		delete(p.offers, seg)
		if p.duplex != nil {
			_ = p.duplex.Forget(number) // a peer that is gone forgets everything
		}
	}
}

// Message implements duplex.Handler.
func (p *pair) Message(m wire.Message, mayWait bool) error {
	if p.link.recent.Swap(p) == nil {
		p.link.lookout.Watch(true)
	}
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
	if d.foreign != nil {
		p.borrowed.Add(1)
		d.foreign.free = p.unborrow
	}
	faultpoint.Hit("node-delivered-direct")
	a := p.link.arrivals(m.Source)
	if a == nil {
		d.discard() // its request is over, which the peer learns
		return nil
	}
	return a.direct(p, m.Edge, d)
}

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
	defer p.mu.Unlock()
	return p.segments[number], p.come
}

// finished is told that the work on a delivery is done. The payload may be
// needed beyond that.
func (p *pair) finished(m *wire.Finish) error {
	keep := m.Flags&wire.FinishKeep != 0
	p.mu.Lock()
	o := p.sent[m.Delivery]
	if o == nil && p.leaving() { // it was taken for given back
		p.mu.Unlock()
		return nil
	}
	if o == nil || o.kept {
		p.mu.Unlock()
		return fmt.Errorf("%w: delivery %d is not the peer's to finish", wire.ErrProtocol, m.Delivery)
	}
	if !keep {
		p.mu.Unlock()
		p.giveBack(m.Delivery, o)
		return nil
	}
	o.kept = true
	f, credit := o.spend(true)
	p.mu.Unlock()
	give(f, credit)
	return nil
}

// lent is told that the peer passes a payload on by reference.
func (p *pair) lent(id uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.sent[id]
	if o == nil && p.leaving() {
		return nil
	}
	if o == nil {
		return fmt.Errorf("%w: delivery %d is not the peer's to pass on", wire.ErrProtocol, id)
	}
	o.lent = true
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
	p.mu.Lock()
	o := p.sent[id]
	p.mu.Unlock()
	if o == nil && p.leaving() {
		return nil
	}
	if o == nil || !o.kept {
		return fmt.Errorf("%w: the payload of delivery %d was not kept, or was released before", wire.ErrProtocol, id)
	}
	p.giveBack(id, o)
	return nil
}

// giveBack ends a delivery that the peer needs no more.
func (p *pair) giveBack(id uint32, o *outgoing) {
	p.mu.Lock()
	_, mine := p.sent[id]
	delete(p.sent, id)
	p.mu.Unlock()
	if !mine {
		return // this side has closed the pair
	}
	faultpoint.Hit("node-direct-returned")
	o.returned()
	if d := p.connection(); o.own != 0 && d != nil {
		_ = d.Forget(o.own) // a peer that is gone forgets everything
	}
}
