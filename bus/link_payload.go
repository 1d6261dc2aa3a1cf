package bus

import (
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// receive makes a delivery of a message from the host.
func (l *link) receive(m *wire.Deliver) (*Delivery, error) {
	return newFed(m, l, func(number uint32) *segment {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.segments[number]
	})
}

// put sends the payload of d for a source of the host's. When it is returned,
// nobody needs it any more.
func (l *link) put(source uint32, d *Delivery, edge int, returned func()) error {
	m := &wire.Put{
		Put: l.puts.Add(1), Source: source, Delivery: d.cause, Edge: uint16(edge), Codec: uint32(d.PayloadCodec()),
		Attempt: d.Attempt, Size: uint64(len(d.Bytes())), Key: d.Key, Attrs: d.Attrs,
	}
	if d.EOS {
		m.Flags |= wire.FlagLast
	}
	at, err := l.locate(m, d)
	if err != nil {
		return err
	}
	defer at.release() // the host has it mapped, or will not
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out == nil {
		return l.err
	}
	if l.left {
		go returned() // not under the locks of whoever sends
		return nil
	}
	if at.seg != nil && l.offers[at.seg] == 0 && len(l.offers) >= maxNodeOffered {
		m.Flags |= wire.FlagOwn // the host knows only so many for longer
	}
	l.out[m.Put] = &outgoing{d: d, returned: returned}
	if at.seg != nil {
		if m.Segment, err = l.offer(at.seg, m.Flags&wire.FlagOwn != 0); err != nil {
			delete(l.out, m.Put)
			return err
		}
	}
	faultpoint.Hit("node-before-put")
	if d.flow != nil && d.flow.producer.endsSoon() { // then its finish follows
		_, err = l.later(m)
	} else {
		err = l.send(m)
	}
	if err != nil {
		delete(l.out, m.Put)
		l.unoffer(at.seg, m.Segment, m.Flags)
		return err
	}
	faultpoint.Hit("node-put")
	return nil
}

// locate says in m where the payload of d lies: with the host, whose delivery it came in,
// in the message, or in a segment.
func (l *link) locate(m *wire.Put, d *Delivery) (at location, err error) {
	inlineBytes := int(l.welcome.InlineBytes)
	if d.foreign != nil && d.foreign.from == feeder(l) && len(d.Bytes()) > inlineBytes {
		m.Flags |= wire.FlagForward
		m.Delivery = d.foreign.id
		return location{}, nil
	}
	if at, err = d.locate(inlineBytes); err != nil {
		return location{}, err
	}
	switch {
	case at.own:
		m.Flags |= wire.FlagOwn
	case at.seg == nil:
		m.Flags |= wire.FlagInline
		m.Payload = d.Bytes()
	}
	m.Offset = at.offset
	return at, nil
}

// offer, with mu held, tells the host of a segment, for one payload alone or for
// more, and returns its number.
func (l *link) offer(seg *segment, own bool) (uint32, error) {
	if number, known := l.offers[seg]; known {
		return number, nil
	}
	l.lastOffer++
	if err := l.send(&wire.Offer{Segment: l.lastOffer, Bytes: uint64(seg.mem.Size())}, seg.mem.FD()); err != nil {
		return 0, err
	}
	if !own {
		l.offers[seg] = l.lastOffer
	}
	return l.lastOffer, nil
}

// unoffer, with mu held, has the host forget a segment for one payload alone that
// could not be sent. One for more is of use to the next.
func (l *link) unoffer(seg *segment, number uint32, flags uint8) {
	if seg != nil && flags&wire.FlagOwn != 0 {
		delete(l.offers, seg)
		l.queue(&wire.Forget{Segment: number})
	}
}

func (l *link) returned(id uint32) {
	l.mu.Lock()
	o, ok := l.out[id]
	delete(l.out, id)
	if ok {
		l.returning.Add(1)
	}
	l.mu.Unlock()
	faultpoint.Hit("node-returned")
	if ok {
		o.returned()
		l.returning.Done()
	}
}

// spent gives credit back for a payload that the host still needs.
func (l *link) spent(m *wire.Spent) {
	l.mu.Lock()
	var f *flow
	var credit uint64
	if o := l.out[m.Put]; o != nil {
		f, credit = o.spend(m.Flags&wire.SpentBytes != 0)
	}
	l.mu.Unlock()
	give(f, credit)
}

// withdraw tells the host that nothing more will lie in a segment that it may
// know from here.
func (l *link) withdraw(seg *segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if number, known := l.offers[seg]; known {
		delete(l.offers, seg)
		l.queue(&wire.Forget{Segment: number})
	}
}
