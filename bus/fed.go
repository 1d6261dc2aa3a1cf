package bus

import (
	"fmt"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// fed is the answer that a delivery owes to the process that sent it.
type fed struct {
	from       Feeder
	id         uint32
	err        error
	answered   bool
	unfinished *atomic.Int64 // of all such deliveries; nil: they are not counted
}

// Feeder is the peer that sends deliveries: the host, or another node.
type Feeder interface {
	// Queue sends an answer. It does not wait, and may be called under locks.
	Queue(m wire.Message)
	// QueueLater is Queue for an answer that can wait for the next message, up to a
	// millisecond.
	QueueLater(m wire.Message)
	// Relays reports whether the peer is the host, which numbers and passes on the deliveries of others.
	Relays() bool
	// Leaving reports whether this process is leaving the bus, or has lost its host.
	Leaving() bool
}

// hostID is the host's number of the delivery; 0: it did not come from the host.
func (f *fed) hostID() uint32 {
	if f == nil || !f.from.Relays() {
		return 0
	}
	return f.id
}

// fail tells the sender of d why it could not be handled. This comes before the failure of
// the task, so the host knows the failed delivery. The payload stays until d is finished.
func (f *fed) fail(d *Delivery, err error) {
	if f != nil && !f.answered {
		f.err = err
		f.sendFinish(d, d.foreign != nil)
	}
}

// finish tells the sender of d that the work on d is done. A payload that was forwarded
// by reference stays with this process until that reference is released.
func (f *fed) finish(d *Delivery) {
	if f == nil || f.answered {
		return
	}
	f.sendFinish(d, d.foreign != nil && d.foreign.Shared())
}

// retain tells the sender of d that it was handled, and that its payload stays here
// for a replay.
func (f *fed) retain(d *Delivery) {
	if f != nil && !f.answered {
		f.sendFinish(d, d.foreign != nil)
	}
}

// returnsUnhandled reports whether the delivery is returned unhandled because this
// process is leaving: the host redelivers it to another replica.
func (f *fed) returnsUnhandled(d *Delivery) bool {
	return f.from.Relays() && (d.flow == nil || d.flow.req.owner == nil) && f.from.Leaving()
}

// sendFinish sends the finish of a delivery. A payload that stays is released with
// its last reference in this process.
func (f *fed) sendFinish(d *Delivery, stays bool) {
	f.answered = true
	if f.returnsUnhandled(d) {
		return
	}
	m := &wire.Finish{Delivery: f.id}
	if f.err != nil {
		m.Code, m.Text = wire.CodeInternal, f.err.Error()
		if d.flow.req.late() { // by this process's clock; the host decides by its own
			m.Code = wire.CodeOver
		}
	}
	// The host may take a handled last input for the end of the task. If the task has failed after its handler
	// returned, because of a queued output, the host has to wait for the error.
	if d.handled && (d.flow == nil || !d.flow.req.endedEarly()) {
		m.Flags = wire.FinishHandled
	}
	if stays {
		m.Flags |= wire.FinishKeep
		id, from := f.id, f.from
		d.foreign.AfterFree(func() { from.Queue(&wire.Release{Delivery: id}) })
	}
	if f.unfinished != nil {
		f.unfinished.Add(-1)
	}
	faultpoint.Hit("node-before-finish")
	if f.err == nil && d.finishCanWait() {
		f.from.QueueLater(m)
	} else {
		f.from.Queue(m)
	}
	faultpoint.Hit("node-finished")
}

// finishCanWait reports whether the finish of a delivery can wait for the next message: the finish
// of a small result, while fewer than half of the edge's limit are unfinished, and the finish of the
// last input of a task, which the end of the task follows.
func (d *Delivery) finishCanWait() bool {
	switch {
	case d.flow == nil:
		return false
	case d.flow.req.owner != nil:
		return d.foreign == nil && d.fed.unfinished != nil && uint64(d.fed.unfinished.Load()) < d.flow.edge.limit/2
	}
	return d.EOS && d.flow.consumer != nil && d.flow.consumer.stage.spec.End == nil
}

// GivenBy returns the number under which the peer has delivered the payload, if it has.
func (c DeliveryControl) GivenBy(from Feeder) (id uint32, given bool) {
	return c.d.foreign.NumberFrom(from)
}

// EndOfStream makes the delivery without payload that ends a stream at seq.
func EndOfStream(seq uint64) *Delivery {
	d := newDelivery()
	d.EOS, d.Seq = true, seq
	return d
}

// DeliveryOf makes a delivery of a message. find returns the segment that the sender has announced
// under a number, and keeps the segment during the call; nil: it is unknown.
func DeliveryOf(m *wire.Deliver, from Feeder, find func(number uint32) *accounts.Segment) (*Delivery, error) {
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
	p, err := seg.CheckedPayload(m.Offset, m.Size, false, func() {})
	if err != nil {
		return nil, fmt.Errorf("delivery %d: %w", m.Delivery, err)
	}
	p.SetOrigin(from, m.Delivery)
	d.foreign, d.Inline = p, p.Bytes()
	return d, nil
}
