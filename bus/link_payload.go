package bus

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// fed is what a delivery that came from the host owes it.
type fed struct {
	link *link
	id   uint32
	err  error
	done bool
}

func (f *fed) number() uint32 {
	if f == nil {
		return 0
	}
	return f.id
}

// fail tells the host why d could not be handled, before it hears that the task
// has failed: it then knows where. The payload stays until d is finished.
func (f *fed) fail(d *Delivery, err error) {
	if f != nil && !f.done {
		f.err = err
		f.tell(d.foreign, d.foreign != nil)
	}
}

// finish tells the host that the work on d is done. A payload that was sent on
// by reference stays with this process until that is returned.
func (f *fed) finish(d *Delivery) {
	if f == nil || f.done {
		return
	}
	f.tell(d.foreign, d.foreign != nil && d.foreign.refs.Load() > 1)
}

// retain tells the host that d was handled, and that its payload stays here
// for a replay.
func (f *fed) retain(d *Delivery) {
	if f != nil && !f.done {
		f.tell(d.foreign, d.foreign != nil)
	}
}

// tell sends the finish of a delivery. A payload that stays is released when
// the last of its references here is.
func (f *fed) tell(p *foreign, stays bool) {
	f.done = true
	m := &wire.Finish{Delivery: f.id}
	if f.err != nil {
		m.Code, m.Text = wire.CodeInternal, f.err.Error()
	}
	if stays {
		m.Flags |= wire.FinishKeep
		id, l := f.id, f.link
		p.free = func() { l.queue(&wire.Release{Delivery: id}) }
	}
	faultpoint.Hit("node-before-finish")
	f.link.queue(m)
	faultpoint.Hit("node-finished")
}

// receive makes a delivery of a message.
func (l *link) receive(m *wire.Deliver) (*Delivery, error) {
	d := newDelivery()
	d.Seq, d.Dropped, d.Attempt, d.Key, d.Attrs = m.Seq, m.Dropped, m.Attempt, m.Key, m.Attrs
	d.EOS = m.Flags&wire.FlagLast != 0
	d.Codec = m.Codec
	d.fed = &fed{link: l, id: m.Delivery}
	if m.Flags&wire.FlagInline != 0 {
		if len(m.Payload) <= smallBytes {
			d.Inline = d.small[:copy(d.small[:], m.Payload):len(m.Payload)]
		} else {
			d.Inline = append([]byte{}, m.Payload...)
		}
		return d, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seg := l.segments[m.Segment]
	if seg == nil {
		return nil, fmt.Errorf("%w: delivery %d lies in segment %d, which is not known", wire.ErrProtocol, m.Delivery, m.Segment)
	}
	if size := uint64(seg.mem.Size()); m.Offset > size || m.Size > size-m.Offset {
		return nil, fmt.Errorf("%w: delivery %d has %d bytes at %d of a segment of %d", wire.ErrProtocol, m.Delivery, m.Size, m.Offset, size)
	}
	d.foreign = seg.payload(int64(m.Offset), int(m.Size), func() {})
	d.foreign.delivery = m.Delivery
	d.Inline = d.foreign.data
	return d, nil
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
	var seg *segment
	switch p := d.Bytes(); {
	case len(p) <= int(l.welcome.InlineBytes):
		m.Flags |= wire.FlagInline
		m.Payload = p
	case d.foreign != nil && d.foreign.delivery != 0:
		m.Flags |= wire.FlagForward
		m.Delivery = d.foreign.delivery
	case shmstore.IsLarge(d.Handle):
		large, err := d.flow.req.bus.largeSegment(d.Handle)
		if err != nil {
			return fmt.Errorf("payload of %d bytes: %w", len(p), err)
		}
		m.Flags |= wire.FlagOwn
		seg = large
		defer large.release() // the host has it mapped, or will not
	case !d.Handle.IsZero():
		seg, m.Offset = d.flow.req.bus.shared, d.Handle.Offset
	default: // the store had no room in one piece
		own, err := ownSegment(p)
		if err != nil {
			return fmt.Errorf("payload of %d bytes: %w", len(p), err)
		}
		m.Flags |= wire.FlagOwn
		seg = own.seg
		defer own.release() // the host has it mapped, or will not
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out == nil {
		return l.err
	}
	l.out[m.Put] = outgoing{d, returned}
	if seg != nil {
		if err := l.offer(seg, m); err != nil {
			delete(l.out, m.Put)
			return err
		}
	}
	faultpoint.Hit("node-before-put")
	if err := l.sender.Queue(m); err != nil {
		delete(l.out, m.Put)
		return fmt.Errorf("%w: %w", ErrHostGone, err)
	}
	faultpoint.Hit("node-put")
	return nil
}

// offer, with mu held, tells the host of the segment of a put.
func (l *link) offer(seg *segment, m *wire.Put) error {
	number, known := l.offers[seg]
	if !known {
		l.lastOffer++
		number = l.lastOffer
		if m.Flags&wire.FlagOwn == 0 {
			l.offers[seg] = number
		}
		if err := l.sender.Queue(&wire.Offer{Segment: number, Bytes: uint64(seg.mem.Size())}, seg.mem.FD()); err != nil {
			return fmt.Errorf("%w: %w", ErrHostGone, err)
		}
	}
	m.Segment = number
	return nil
}

// outgoing is a put that the host has not returned.
type outgoing struct {
	d        *Delivery
	returned func()
}

func (l *link) returned(id uint32) {
	l.mu.Lock()
	o, ok := l.out[id]
	delete(l.out, id)
	l.mu.Unlock()
	faultpoint.Hit("node-returned")
	if ok {
		o.returned()
	}
}

// spent gives credit back for a payload that the host still needs.
func (l *link) spent(m *wire.Spent) {
	l.mu.Lock()
	o, ok := l.out[m.Put]
	var back uint64
	if ok { // not finished, so that nobody else looks at its credit
		if o.d.credit >= oneDelivery {
			back = oneDelivery
		}
		if m.Flags&wire.SpentBytes != 0 {
			back += o.d.credit & bytesMask
		}
		o.d.credit -= back
	}
	l.mu.Unlock()
	if back != 0 {
		o.d.flow.give(back)
	}
}
