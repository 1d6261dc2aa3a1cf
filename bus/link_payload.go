package bus

import (
	"fmt"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// fed is what a delivery that came from another process owes it.
type fed struct {
	from feeder
	id   uint32
	err  error
	done bool
	open *atomic.Int64 // counts those not finished; nil: nobody does
}

// feeder is where deliveries come from: the host, or another node.
type feeder interface {
	// queue sends an answer. It does not wait, and may be called under locks.
	queue(m wire.Message)
	// tell is queue for what must have been sent when it returns: it reports
	// whether it was.
	tell(m wire.Message) bool
	// leaving reports whether this process says goodbye.
	leaving() bool
}

// number is what the host calls the delivery; 0: it does not know it.
func (f *fed) number() uint32 {
	if f == nil {
		return 0
	}
	if _, relayed := f.from.(*link); !relayed {
		return 0
	}
	return f.id
}

// fail tells whoever sent d why it could not be handled, before the host hears that
// the task has failed: it then knows where. The payload stays until d is finished.
func (f *fed) fail(d *Delivery, err error) {
	if f != nil && !f.done {
		f.err = err
		f.tell(d, d.foreign != nil)
	}
}

// finish tells whoever sent d that the work on d is done. A payload that was sent on
// by reference stays with this process until that is returned.
func (f *fed) finish(d *Delivery) {
	if f == nil || f.done {
		return
	}
	f.tell(d, d.foreign != nil && d.foreign.refs.Load() > 1)
}

// retain tells whoever sent d that it was handled, and that its payload stays here
// for a replay.
func (f *fed) retain(d *Delivery) {
	if f != nil && !f.done {
		f.tell(d, d.foreign != nil)
	}
}

// leftBehind reports whether a delivery is the host's to take back, with the goodbye
// that this process is about to say: most likely it was not handled, and is to be
// elsewhere.
func (f *fed) leftBehind(d *Delivery) bool {
	_, relayed := f.from.(*link)
	return relayed && (d.flow == nil || d.flow.req.served != nil) && f.from.leaving()
}

// tell sends the finish of a delivery. A payload that stays is released when
// the last of its references here is.
func (f *fed) tell(d *Delivery, stays bool) {
	f.done = true
	if f.leftBehind(d) {
		return
	}
	p := d.foreign
	m := &wire.Finish{Delivery: f.id}
	if f.err != nil {
		m.Code, m.Text = wire.CodeInternal, f.err.Error()
	}
	if stays || p.stranded() {
		m.Flags |= wire.FinishKeep
		id, free := f.id, p.free
		p.free = func() {
			free()
			if !p.stranded() {
				p.from.queue(&wire.Release{Delivery: id})
			}
		}
	}
	if f.open != nil {
		f.open.Add(-1)
	}
	faultpoint.Hit("node-before-finish")
	f.from.queue(m)
	faultpoint.Hit("node-finished")
}

// receive makes a delivery of a message from the host.
func (l *link) receive(m *wire.Deliver) (*Delivery, error) {
	return newFed(m, l, func(number uint32) *segment {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.segments[number]
	})
}

// newFed makes a delivery of a message. find knows the segments of whoever sent
// it, and those that it knows are not forgotten meanwhile.
func newFed(m *wire.Deliver, from feeder, find func(number uint32) *segment) (*Delivery, error) {
	d := newDelivery()
	d.Seq, d.Dropped, d.Attempt, d.Key, d.Attrs = m.Seq, m.Dropped, m.Attempt, m.Key, m.Attrs
	d.EOS = m.Flags&wire.FlagLast != 0
	d.Codec = m.Codec
	d.fed = &fed{from: from, id: m.Delivery}
	if m.Flags&wire.FlagInline != 0 {
		if len(m.Payload) <= smallBytes {
			d.Inline = d.small[:copy(d.small[:], m.Payload):len(m.Payload)]
		} else {
			d.Inline = append([]byte{}, m.Payload...)
		}
		return d, nil
	}
	seg := find(m.Segment)
	if seg == nil {
		return nil, fmt.Errorf("%w: delivery %d lies in segment %d, which is not known", wire.ErrProtocol, m.Delivery, m.Segment)
	}
	p, err := seg.claimed(m.Offset, m.Size, func() {})
	if err != nil {
		return nil, fmt.Errorf("delivery %d: %w", m.Delivery, err)
	}
	p.from, p.id = from, m.Delivery
	d.foreign, d.Inline = p, p.data
	return d, nil
}

// place is where a payload lies that other processes are to read.
type place struct {
	seg    *segment // nil: in the message
	offset uint64
	own    bool // the segment is for this payload alone
	made   bool // a reference to it is the caller's
}

func (at place) release() {
	if at.made {
		at.seg.release()
	}
}

// place finds where the payload of d lies, and takes it to where others can
// read it if that is nowhere.
func (d *Delivery) place(inlineBytes int) (place, error) {
	p := d.Bytes()
	switch {
	case len(p) <= inlineBytes:
		return place{}, nil
	case shmstore.IsLarge(d.Handle):
		large, err := d.flow.req.bus.largeSegment(d.Handle)
		if err != nil {
			return place{}, fmt.Errorf("payload of %d bytes: %w", len(p), err)
		}
		return place{seg: large, own: true, made: true}, nil
	case !d.Handle.IsZero():
		return place{seg: d.flow.req.bus.shared, offset: d.Handle.Offset}, nil
	}
	if p := d.foreign; p.lend() {
		// In a store's arena nothing begins at 0: there is a header before it.
		return place{seg: p.seg, offset: uint64(p.offset), own: p.offset == 0}, nil
	}
	// The store had no room in one piece.
	own, err := ownSegment(p)
	if err != nil {
		return place{}, fmt.Errorf("payload of %d bytes: %w", len(p), err)
	}
	return place{seg: own.seg, own: true, made: true}, nil
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
	var at place
	var err error
	if d.foreign != nil && d.foreign.from == feeder(l) && len(d.Bytes()) > int(l.welcome.InlineBytes) {
		m.Flags |= wire.FlagForward
		m.Delivery = d.foreign.id
	} else if at, err = d.place(int(l.welcome.InlineBytes)); err != nil {
		return err
	}
	switch {
	case at.own:
		m.Flags |= wire.FlagOwn
		defer at.release() // the host has it mapped, or will not
	case at.seg == nil && m.Flags&wire.FlagForward == 0:
		m.Flags |= wire.FlagInline
		m.Payload = d.Bytes()
	}
	m.Offset = at.offset
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out == nil {
		return l.err
	}
	if l.left {
		go returned() // not under the locks of whoever sends
		return nil
	}
	if at.seg != nil && l.offers[at.seg] == 0 && len(l.offers) >= maxOffered/2 {
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
	if err := l.told(l.sender.Queue(m)); err != nil {
		delete(l.out, m.Put)
		l.unoffer(at.seg, m.Segment, m.Flags)
		return err
	}
	faultpoint.Hit("node-put")
	return nil
}

// offer, with mu held, tells the host of a segment, for one payload alone or for
// more, and returns its number.
func (l *link) offer(seg *segment, own bool) (uint32, error) {
	if number, known := l.offers[seg]; known {
		return number, nil
	}
	l.lastOffer++
	if err := l.told(l.sender.Queue(&wire.Offer{Segment: l.lastOffer, Bytes: uint64(seg.mem.Size())}, seg.mem.FD())); err != nil {
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
