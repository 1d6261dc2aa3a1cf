package bus

import (
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// payload is a payload that outlives its delivery.
type payload struct {
	codec   codec.ID
	foreign *accounts.Payload
	lease   shmstore.Lease // if foreign and inline are nil
	owner   *Bus           // the bus of the lease's store
	inline  []byte
}

// holdPayload holds the payload of d, which the caller holds, until it is released.
func (d *Delivery) holdPayload() *payload {
	p := &payload{codec: d.PayloadCodec(), foreign: d.foreign, inline: d.Inline}
	switch {
	case d.foreign != nil:
		d.foreign.Retain(1)
	case d.Handle.IsZero():
		if len(d.Inline) <= smallBytes { // it may lie in d
			p.inline = append([]byte{}, d.Inline...)
		}
	default:
		p.takeLease(&d.lease, d.flow.req.bus)
	}
	return p
}

// takeLease takes another lease on the object of a lease, which keeps the object in
// place meanwhile. A closing store keeps its memory while a lease is open.
func (p *payload) takeLease(lease *shmstore.Lease, of *Bus) {
	if lease.Share(1) == nil {
		p.owner = of
		p.lease, _ = of.store.Local().Take(lease.Handle())
	}
}

// Hold implements accounts.Held: it holds the payload once more.
func (p *payload) Hold() accounts.Held {
	again := &payload{codec: p.codec, foreign: p.foreign, inline: p.inline}
	switch {
	case p.foreign != nil:
		p.foreign.Retain(1)
	case p.inline == nil:
		again.takeLease(&p.lease, p.owner)
	}
	return again
}

// Release implements accounts.Held.
func (p *payload) Release() {
	switch {
	case p.foreign != nil:
		p.foreign.Release()
	case p.inline == nil && !p.lease.Handle().IsZero():
		h := p.lease.Handle()
		p.lease.Release()
		p.owner.payloadReleased(h)
	}
}

// largeSegment exposes the segment of a large object of the bus's store, whose
// lease the caller holds. The caller releases the segment.
func (b *Bus) largeSegment(h messages.Handle) (*accounts.Segment, error) {
	lockorder.AssertNone("the writer is asked")
	var mem *shmstore.Segment
	var err error
	if doErr := b.writer.Do(func(s *shmstore.Store) { mem, err = s.ExposeLarge(h) }); doErr != nil {
		return nil, doErr
	}
	if err != nil {
		return nil, err
	}
	return accounts.Mapped(mem), nil
}

// emitPayload sends a held payload by reference; a small one is copied.
func (e Emitter) emitPayload(p *payload, em Emission) error {
	if p.foreign != nil {
		p.foreign.Retain(1)
		return e.emitLent(p.foreign, p.codec, em)
	}
	switch {
	case p.inline == nil:
		return e.emitLease(&p.lease, p.codec, em)
	case len(p.inline) <= smallBytes:
		return e.emitCopy(p.inline, p.codec, em)
	}
	return e.emitHeap(p.inline, p.codec, em)
}

// emitLent sends a payload that lies outside the store along the stage's edges. It
// takes over the caller's reference, also after an error.
func (e Emitter) emitLent(p *accounts.Payload, c codec.ID, em Emission) error {
	size := len(p.Bytes())
	b := Buffer{e: e, em: em, size: size, price: e.out.req.bus.price(size), codec: c, lent: p, heap: p.Bytes()}
	err := b.admit()
	if err != nil || b.void {
		p.Release()
		return err
	}
	return b.sendLent(size)
}

// sendLent sends the first n bytes of a payload that lies outside the store.
func (b *Buffer) sendLent(n int) error {
	p := b.lent
	p.Retain(len(b.edges))
	defer p.Release()
	return b.send(messages.Handle{}, p.Bytes()[:n:n])
}
