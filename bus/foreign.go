package bus

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// foreign is a payload that lies outside the bus's store: in memory that
// another process writes, or in a segment of its own. The deliveries of one
// payload share it and count their references.
type foreign struct {
	seg    *segment // nil: on the heap
	offset int64
	data   []byte // in this process, read-only
	refs   atomic.Int32
	free   func() // called once, when nobody needs the payload any more

	// In the host: those references that are no reminders, see remind.
	reads  atomic.Int32
	unread func() // called once, when the last of them is gone; nil: nobody asks

	// In a node: who gave it, by which number, and whether that knows that the
	// payload is passed on.
	from feeder
	id   uint32
	lent atomic.Bool
}

func (p *foreign) retain(n int) {
	p.reads.Add(int32(n))
	p.refs.Add(int32(n))
}

func (p *foreign) release() {
	if p.reads.Add(-1) == 0 && p.unread != nil {
		p.unread()
	}
	p.drop()
}

// giveUp is release; nil is of nothing.
func (p *foreign) giveUp() {
	if p != nil {
		p.release()
	}
}

// remind keeps the payload for others that may read it, which is no reason to
// say that it is read here. It is for holders of a reference; drop undoes it.
func (p *foreign) remind() { p.refs.Add(1) }

func (p *foreign) drop() {
	if p.refs.Add(-1) == 0 {
		p.free()
		if p.seg != nil {
			p.seg.release()
		}
	}
}

// lend tells whoever gave the payload that others may read it when this process
// is dead. It reports false if that is not certain to be heard, or if there is
// nobody to be told: the payload must not be passed on then.
func (p *foreign) lend() bool {
	if p == nil || p.seg == nil || p.from == nil {
		return false
	}
	if !p.lent.Load() {
		if !p.from.tell(&wire.Lent{Delivery: p.id}) {
			return false
		}
		p.lent.Store(true)
	}
	return true
}

// stranded reports whether the payload was passed on by a process that leaves
// before those that read it are done. It does not learn any more when that is:
// the payload is not its to give back.
func (p *foreign) stranded() bool {
	return p != nil && p.from != nil && p.lent.Load() && p.from.leaving()
}

// segment is shared memory that payloads lie in and that can be passed on to
// other processes. It is unmapped when its owner is gone and no payload in it
// is needed.
type segment struct {
	mem  *shmstore.Segment
	refs atomic.Int32 // the owner's, and one for each payload
	// lasting says that more payloads may come to lie here.
	lasting atomic.Bool
	kept    *keeping
	puts    ranges // of payloads in it, when it is a client's own
	gone    func() // called once, with the last reference; nil: nothing is to be done

	told  sync.Once
	unmap func(func()) // has the GPU lane forget it first; nil: it was never told
}

func newSegment(mem *shmstore.Segment) *segment {
	s := &segment{mem: mem, kept: new(keeping)}
	s.refs.Store(1)
	return s
}

// newLasting is newSegment of memory that more payloads come to lie in.
func newLasting(mem *shmstore.Segment) *segment {
	s := newSegment(mem)
	s.lasting.Store(true)
	return s
}

func (s *segment) retain() { s.refs.Add(1) }

func (s *segment) release() {
	if s.refs.Add(-1) > 0 {
		return
	}
	if s.gone != nil {
		s.gone()
	}
	back := func() { unmapping.close(s.mem) }
	if s.unmap == nil {
		back()
		return
	}
	s.unmap(back)
}

// tell tells a GPU lane of the memory. It is for holders of a reference.
func (s *segment) tell(l *lane.Lane) {
	s.told.Do(func() { s.unmap = l.Mapped(s.mem.Bytes()) })
}

// newForeign makes bytes that lie in no segment a payload with one reference.
func newForeign(data []byte, free func()) *foreign {
	p := &foreign{data: data, free: free}
	p.refs.Store(1)
	p.reads.Store(1)
	return p
}

// payload makes the bytes from offset on a payload with one reference.
func (s *segment) payload(offset int64, size int, free func()) *foreign {
	s.retain()
	p := newForeign(s.mem.Bytes()[offset:offset+int64(size):offset+int64(size)], free)
	p.seg, p.offset = s, offset
	return p
}

// claimed is payload for bytes of which another process says where they lie.
func (s *segment) claimed(offset, size uint64, free func()) (*foreign, error) {
	if most := uint64(s.mem.Size()); offset > most || size > most-offset {
		return nil, fmt.Errorf("%w: %d bytes at %d of a segment of %d", wire.ErrProtocol, size, offset, most)
	}
	if !s.mem.Filled(int64(offset + size)) {
		return nil, fmt.Errorf("%w: %d bytes at %d of a segment that has no memory there yet", wire.ErrProtocol, size, offset)
	}
	return s.payload(int64(offset), int(size), free), nil
}

// aloneIn makes the first bytes of a segment the one payload in it.
func aloneIn(mem *shmstore.Segment, size int, free func()) *foreign {
	s := newSegment(mem)
	defer s.release() // the payload keeps it
	return s.payload(0, size, free)
}

// ownSegment copies a payload from the heap into a segment of its own, so that
// other processes can read it.
func ownSegment(data []byte) (*foreign, error) {
	mem, err := shmstore.NewSegment("payload", int64(len(data)))
	if err != nil {
		return nil, err
	}
	codec.Copy(mem.Bytes(), data)
	return aloneIn(mem, len(data), func() {}), nil
}

// largeSegment opens the segment of a large object of the bus's store, whose
// lease the caller holds, for passing it on. It is the caller's to release.
func (b *Bus) largeSegment(h messages.Handle) (*segment, error) {
	var mem *shmstore.Segment
	var err error
	if doErr := b.writer.Do(func(s *shmstore.Store) { mem, err = s.ExposeLarge(h) }); doErr != nil {
		return nil, doErr
	}
	if err != nil {
		return nil, err
	}
	return newSegment(mem), nil
}

// payload is the payload of a delivery that somebody needs beyond its end.
type payload struct {
	codec   codec.ID
	foreign *foreign
	lease   shmstore.Lease // when neither of the others is there
	of      *Bus           // whose store the lease is of
	inline  []byte
	remind  bool // the reference to foreign is a reminder
}

// hold keeps the payload of d, which is in the caller's hands, until it is
// released.
func (d *Delivery) hold() *payload {
	p := &payload{codec: d.PayloadCodec(), foreign: d.foreign, inline: d.Inline}
	switch {
	case d.foreign != nil:
		d.foreign.retain(1)
	case d.Handle.IsZero():
		if len(d.Inline) <= smallBytes { // it may lie in d
			p.inline = append([]byte{}, d.Inline...)
		}
	default:
		p.take(&d.lease, d.flow.req.bus)
	}
	return p
}

// take takes a lease of its own on what is under another. That keeps the object in
// place meanwhile. A store that closes keeps its memory while it is open.
func (p *payload) take(lease *shmstore.Lease, of *Bus) {
	if lease.Share(1) == nil {
		p.of = of
		p.lease, _ = of.store.Local().Take(lease.Handle())
	}
}

// hold keeps a payload once more.
func (p *payload) hold() *payload {
	again := &payload{codec: p.codec, foreign: p.foreign, inline: p.inline}
	switch {
	case p.foreign != nil:
		p.foreign.retain(1)
	case p.inline == nil:
		again.take(&p.lease, p.of)
	}
	return again
}

// lent makes a payload that is held one that is kept for others.
func (p *payload) lent() *payload {
	if p.foreign != nil {
		p.foreign.remind()
		p.foreign.release()
		p.remind = true
	}
	return p
}

// release ends a hold; nil is of nothing.
func (p *payload) release() {
	switch {
	case p == nil:
	case p.remind:
		p.foreign.drop()
	case p.foreign != nil:
		p.foreign.release()
	case p.inline == nil && !p.lease.Handle().IsZero():
		h := p.lease.Handle()
		p.lease.Release()
		p.of.settled(h)
	}
}

// pass sends a payload that is held on by reference.
func (e Emitter) pass(p *payload, em emission) error {
	if p.foreign != nil {
		p.foreign.retain(1)
		return e.lend(p.foreign, p.codec, em)
	}
	switch {
	case p.inline == nil:
		return e.share(&p.lease, p.codec, em)
	case len(p.inline) <= smallBytes:
		return e.copied(p.inline, p.codec, em)
	}
	return e.again(p.inline, p.codec, em)
}

// lend sends a payload that lies elsewhere along the stage's edges. It takes
// over the caller's reference, also if it fails.
func (e Emitter) lend(p *foreign, c codec.ID, em emission) error {
	b := Buffer{e: e, em: em, size: len(p.data), price: e.out.req.bus.price(len(p.data)), codec: c, lent: p, heap: p.data}
	err := b.admit()
	if err != nil || b.void {
		p.release()
		return err
	}
	return b.sendLent(len(p.data))
}

// sendLent sends the first n bytes of a payload that lies elsewhere.
func (b *Buffer) sendLent(n int) error {
	p := b.lent
	p.retain(len(b.edges))
	defer p.release()
	return b.send(messages.Handle{}, p.data[:n:n])
}
