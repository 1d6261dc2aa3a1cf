package bus

import (
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// payload is the payload of a delivery that is needed beyond its end.
type payload struct {
	codec   codec.ID
	foreign *ledger.Payload
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
		d.foreign.Retain(1)
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

// Hold implements ledger.Held: it keeps a payload once more.
func (p *payload) Hold() ledger.Held {
	again := &payload{codec: p.codec, foreign: p.foreign, inline: p.inline}
	switch {
	case p.foreign != nil:
		p.foreign.Retain(1)
	case p.inline == nil:
		again.take(&p.lease, p.of)
	}
	return again
}

// Lend implements ledger.Held.
func (p *payload) Lend() ledger.Held {
	if p.foreign != nil {
		p.foreign.Remind()
		p.remind = true
	}
	return p
}

// Release implements ledger.Held.
func (p *payload) Release() {
	switch {
	case p.remind:
		p.foreign.Forget()
	case p.foreign != nil:
		p.foreign.Release()
	case p.inline == nil && !p.lease.Handle().IsZero():
		h := p.lease.Handle()
		p.lease.Release()
		p.of.settled(h)
	}
}

// handed is a delivery that another process has.
type handed struct {
	hold ledger.Hold
	d    *Delivery
	work *work // that it is a part of, at the host; nil: a result, or a node's
}

// Hold implements ledger.Delivery.
func (h *handed) Hold() ledger.Held { return h.d.hold() }

// handOver makes a delivery of a node's one that another process has until it is returned.
func handOver(d *Delivery, returned func()) *ledger.Hold {
	h := &handed{d: d}
	h.hold = ledger.Hold{Delivery: h, Returned: returned, Bytes: len(d.Bytes()), At: time.Now()}
	return &h.hold
}

// spend gives back the credit of a delivery that another process has, or its place in the
// window alone, while its payload is still needed.
func spend(of *ledger.Account, number uint32, bytesToo bool) {
	var f *flow
	var credit uint64
	of.Look(number, func(hold *ledger.Hold) {
		if hold == nil || hold.Delivery == nil {
			return
		}
		d := hold.Delivery.(*handed).d //nolint:forcetypeassert // an account has no others
		// Not finished, so that nothing else looks at its credit.
		if d.credit >= oneDelivery {
			credit = oneDelivery
		}
		if bytesToo {
			credit += d.credit & bytesMask
		}
		d.credit -= credit
		f = d.flow
	})
	if credit != 0 {
		f.give(credit)
	}
}

// largeSegment opens the segment of a large object of the bus's store, whose
// lease the caller holds, for passing it on. It is the caller's to release.
func (b *Bus) largeSegment(h messages.Handle) (*ledger.Segment, error) {
	var mem *shmstore.Segment
	var err error
	if doErr := b.writer.Do(func(s *shmstore.Store) { mem, err = s.ExposeLarge(h) }); doErr != nil {
		return nil, doErr
	}
	if err != nil {
		return nil, err
	}
	return ledger.Mapped(mem), nil
}

// pass sends a payload that is held on by reference.
func (e Emitter) pass(p *payload, em emission) error {
	if p.foreign != nil {
		p.foreign.Retain(1)
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
func (e Emitter) lend(p *ledger.Payload, c codec.ID, em emission) error {
	size := len(p.Bytes())
	b := Buffer{e: e, em: em, size: size, price: e.out.req.bus.price(size), codec: c, lent: p, heap: p.Bytes()}
	err := b.admit()
	if err != nil || b.void {
		p.Release()
		return err
	}
	return b.sendLent(size)
}

// sendLent sends the first n bytes of a payload that lies elsewhere.
func (b *Buffer) sendLent(n int) error {
	p := b.lent
	p.Retain(len(b.edges))
	defer p.Release()
	return b.send(messages.Handle{}, p.Bytes()[:n:n])
}
