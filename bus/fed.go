package bus

import (
	"fmt"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// fed is what a delivery that came from another process owes it.
type fed struct {
	from       Feeder
	id         uint32
	err        error
	answered   bool
	unfinished *atomic.Int64 // counts those not finished; nil: nobody does
}

// Feeder is where deliveries come from: the host, or another node.
type Feeder interface {
	// Queue sends an answer. It does not wait, and may be called under locks.
	Queue(m wire.Message)
	// QueueLater is queue of an answer that can wait for the next message, up to a millisecond.
	QueueLater(m wire.Message)
	// Relays reports whether it passes on what others have sent, and numbers it.
	Relays() bool
	// Leaving reports whether this process says goodbye, or has lost its host.
	Leaving() bool
}

// hostID is what the host calls the delivery; 0: it does not know it.
func (f *fed) hostID() uint32 {
	if f == nil || !f.from.Relays() {
		return 0
	}
	return f.id
}

// fail tells whoever sent d why it could not be handled, before the host hears that
// the task has failed: it then knows where. The payload stays until d is finished.
func (f *fed) fail(d *Delivery, err error) {
	if f != nil && !f.answered {
		f.err = err
		f.sendFinish(d, d.foreign != nil)
	}
}

// finish tells whoever sent d that the work on d is done. A payload that was sent on
// by reference stays with this process until that is returned.
func (f *fed) finish(d *Delivery) {
	if f == nil || f.answered {
		return
	}
	f.sendFinish(d, d.foreign != nil && d.foreign.Shared())
}

// retain tells whoever sent d that it was handled, and that its payload stays here
// for a replay.
func (f *fed) retain(d *Delivery) {
	if f != nil && !f.answered {
		f.sendFinish(d, d.foreign != nil)
	}
}

// returnsUnhandled reports whether a delivery is the host's to take back, with the goodbye
// that this process is about to say: most likely it was not handled, and is to be
// elsewhere.
func (f *fed) returnsUnhandled(d *Delivery) bool {
	return f.from.Relays() && (d.flow == nil || d.flow.req.owner == nil) && f.from.Leaving()
}

// sendFinish sends the finish of a delivery. A payload that stays is released when
// the last of its references here is.
func (f *fed) sendFinish(d *Delivery, stays bool) {
	f.answered = true
	if f.returnsUnhandled(d) {
		return
	}
	m := &wire.Finish{Delivery: f.id}
	if f.err != nil {
		m.Code, m.Text = wire.CodeInternal, f.err.Error()
		if d.flow.req.late() { // by this clock: the host's decides
			m.Code = wire.CodeOver
		}
	}
	if d.handled {
		m.Flags = wire.FinishHandled
	}
	if stays {
		m.Flags |= wire.FinishKeep
		id, from := f.id, f.from
		d.foreign.After(func() { from.Queue(&wire.Release{Delivery: id}) })
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

// finishCanWait reports whether the finish of a delivery can wait for the next message: that of
// a small result, while its window has places enough, and that of the last input of a task,
// which the end of the task follows.
func (d *Delivery) finishCanWait() bool {
	switch {
	case d.flow == nil:
		return false
	case d.flow.req.owner != nil:
		return d.foreign == nil && d.fed.unfinished != nil && uint64(d.fed.unfinished.Load()) < d.flow.edge.limit/2
	}
	return d.EOS && d.flow.consumer != nil && d.flow.consumer.stage.spec.End == nil
}

// GivenBy gives the number under which the payload came from there, if it did.
func (c DeliveryControl) GivenBy(from Feeder) (id uint32, given bool) {
	return c.d.foreign.GivenBy(from)
}

// EndOfStream makes the end of a stream whose last delivery was not its last.
func EndOfStream(seq uint64) *Delivery {
	d := newDelivery()
	d.EOS, d.Seq = true, seq
	return d
}

// DeliveryOf makes a delivery of a message. find knows the segments that the sender has told of,
// which are not forgotten meanwhile.
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
	p, err := seg.Claimed(m.Offset, m.Size, false, func() {})
	if err != nil {
		return nil, fmt.Errorf("delivery %d: %w", m.Delivery, err)
	}
	p.Given(from, m.Delivery)
	d.foreign, d.Inline = p, p.Bytes()
	return d, nil
}
