package bus

import (
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
)

// The controls are for packages bus/host and bus/node, which connect a pipeline to other
// processes. A program does not use them: finishing a delivery or a request by a control
// bypasses the stage that has it.

// DeliveryControl controls a delivery that goes to another process or comes from one. It belongs
// to one goroutine at a time, as the delivery does.
type DeliveryControl struct{ d *Delivery }

// Control is for packages bus/host and bus/node.
func (d *Delivery) Control() DeliveryControl { return DeliveryControl{d} }

// Discard finishes a delivery unhandled, without returning credit: it has none, or its
// request is over.
func (c DeliveryControl) Discard() { c.d.discard() }

// Hold holds the payload until the result is released.
func (c DeliveryControl) Hold() accounts.Held { return c.d.holdPayload() }

// Origin is the origin of the payload, if a client has put it; else nil.
func (c DeliveryControl) Origin() Origin { return c.d.origin }

// CountUnfinished sets a counter that the delivery, which came from another process, decrements when
// it is finished.
func (c DeliveryControl) CountUnfinished(open *atomic.Int64) { c.d.fed.unfinished = open }

// Spend takes the delivery's credit for a payload that another process still needs. Without bytesToo it takes only
// the credit for one delivery, for a payload that the host keeps for a replay. give returns the taken credit; with
// bytesToo it is nil if there was none.
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
	return func() { f.giveCredit(credit) }
}

// RequestControl controls a request of another process. Its methods are safe for concurrent
// use.
type RequestControl struct{ r *Request }

// Control is for packages bus/host and bus/node.
func (r *Request) Control() RequestControl { return RequestControl{r} }

// End ends the request, unless it is over.
func (c RequestControl) End(o Outcome, err error) { c.r.end(o, err) }

// FlushBatch is the batch of the session that handles packets of the request at the moment; nil: none does.
func (c RequestControl) FlushBatch() *atomic.Pointer[FlushBatch] { return &c.r.flushBatch }

// FlushBatch marks the requests whose packets a session handles in one batch.
type FlushBatch struct{ Owner any }

// EmitterControl emits on behalf of another process.
type EmitterControl struct{ e Emitter }

// Control is for package bus/host.
func (e Emitter) Control() EmitterControl { return EmitterControl{e} }

// Copy emits a copy of a payload.
func (c EmitterControl) Copy(p []byte, of codec.ID, em Emission) error {
	return c.e.emitCopy(p, of, em)
}

// Lend emits a payload in memory of another process. It takes over the caller's reference,
// also after an error.
func (c EmitterControl) Lend(p *accounts.Payload, of codec.ID, em Emission) error {
	return c.e.emitLent(p, of, em)
}

// Pass emits a payload from Hold by reference.
func (c EmitterControl) Pass(p accounts.Held, em Emission) error {
	return c.e.emitPayload(p.(*payload), em) //nolint:forcetypeassert // Hold gives no others
}
