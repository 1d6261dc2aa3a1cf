package bus

import (
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
)

// The controls are for packages bus/host and bus/node, which take a pipeline to other
// processes. A program has no use for them: a delivery or a request that is finished here is
// finished behind the back of the stage that has it.

// DeliveryControl is a delivery in the hands of a package that takes it to another process,
// or has it from there. It belongs to one goroutine at a time, as the delivery does.
type DeliveryControl struct{ d *Delivery }

// Control is for packages bus/host and bus/node.
func (d *Delivery) Control() DeliveryControl { return DeliveryControl{d} }

// Discard finishes a delivery unseen, without giving credit back: it has none, or its
// request is over.
func (c DeliveryControl) Discard() { c.d.discard() }

// Hold keeps the payload until it is released.
func (c DeliveryControl) Hold() accounts.Held { return c.d.hold() }

// Origin is what brought the delivery, when a client sent it; else nil.
func (c DeliveryControl) Origin() Origin { return c.d.put }

// CountIn has the delivery be counted until it is finished. It is for one that came from
// another process.
func (c DeliveryControl) CountIn(open *atomic.Int64) { c.d.fed.open = open }

// Spend takes the delivery's credit for a payload that another process still needs, or its place in
// the window alone for one that the host keeps for a replay. The function that it returns gives the
// credit back; nil: there is none.
func (c DeliveryControl) Spend(bytesToo bool) (give func()) {
	d := c.d
	if !bytesToo {
		return d.retainBytes()
	}
	credit := d.credit
	if credit == 0 {
		return nil
	}
	d.unretain()
	d.credit = 0
	f := d.flow
	return func() { f.give(credit) }
}

// RequestControl is a request in the hands of a package that opens requests for other
// processes. Its methods are safe for concurrent use.
type RequestControl struct{ r *Request }

// Control is for packages bus/host and bus/node.
func (r *Request) Control() RequestControl { return RequestControl{r} }

// End ends the request, unless it is over.
func (c RequestControl) End(o Outcome, err error) { c.r.end(o, err) }

// FlushBatch is where the session that handles packets about the request is noted; nil: none does.
func (c RequestControl) FlushBatch() *atomic.Pointer[FlushBatch] { return &c.r.flushBatch }

// FlushBatch is what a session notes at the requests that it handles packets about.
type FlushBatch struct{ Owner any }

// EmitterControl emits for another process.
type EmitterControl struct{ e Emitter }

// Control is for package bus/host.
func (e Emitter) Control() EmitterControl { return EmitterControl{e} }

// Copy emits a copy of a payload.
func (c EmitterControl) Copy(p []byte, of codec.ID, em Emission) error { return c.e.copied(p, of, em) }

// Lend emits a payload that lies in memory of another process. It takes the caller's
// reference over, also if it fails.
func (c EmitterControl) Lend(p *accounts.Payload, of codec.ID, em Emission) error {
	return c.e.lend(p, of, em)
}

// Pass emits, by reference, what a delivery's Hold has kept.
func (c EmitterControl) Pass(p accounts.Held, em Emission) error {
	return c.e.pass(p.(*payload), em) //nolint:forcetypeassert // Hold gives no others
}
