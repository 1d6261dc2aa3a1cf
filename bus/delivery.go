package bus

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	memory "github.com/omnibus-runtime/omnibus/internal/headroom"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// smallBytes is how much payload a delivery has room for in itself: 64 bytes, as an encoded
// value.
const smallBytes = 80

// Delivery is one message of one request on one edge, as a stage receives it.
// Its payload stays where it was put: Bytes is a view of shared memory. The
// embedded envelope is for reading.
//
// A handler's delivery is finished when the handler returns, unless it was
// kept; one that an actor or a caller received is finished with Finish. A
// delivery must not be touched after that.
//
// It belongs to one goroutine at a time: who sends it hands it to the worker, that to
// whoever holds it. Only state is for several, who decide by it which of them finishes it.
type Delivery struct {
	messages.Delivery

	flow    *flow
	lease   shmstore.Lease
	cost    int64
	sentAt  int64 // nanoseconds since the bus opened; 0: not sampled
	state   atomic.Uint32
	opened  bool              // the lease is taken
	kept    bool              // out of a batch's hands
	handled bool              // its handler has returned, and emits no more for it
	tries   int               // how often a panic had it handled again
	credit  uint64            // what finishing gives back to the flow
	parked  int64             // bytes charged to the join account
	foreign *accounts.Payload // where Inline lies, when it is neither in d nor on the heap
	carried *carried          // what travels by a connector, until it is opened
	fed     *fed              // whom to tell that it is finished, when it came from another process; nil: nobody
	put     Origin            // what brought it, when a client sent it; nil: nothing to be told
	cause   uint32            // the fed delivery whose handling sent it, for a node
	message *lane.Message     // the payload, when it was opened as one with tensors
	large   *accounts.Segment // of a payload that has a segment of its own, once other processes are to read it
	small   [smallBytes]byte
}

// States of a delivery. It is finished exactly once.
const (
	stateSent uint32 = iota
	stateHeld        // kept, or in the hands of a batch, an actor or the caller
	stateFinished
)

// Bytes is the payload, a read-only view that is valid until the delivery is
// finished. It is nil when the delivery only ends its stream.
func (d *Delivery) Bytes() []byte {
	if d.Handle.IsZero() {
		return d.Inline
	}
	return d.lease.Bytes()
}

// Bare reports whether the delivery carries no payload and only ends its stream.
func (d *Delivery) Bare() bool { return d.Inline == nil && d.Handle.IsZero() && d.carried == nil }

// Size is that of the payload in bytes, wherever it is.
func (d *Delivery) Size() int {
	if d.carried != nil {
		return d.carried.size
	}
	return len(d.Inline) + int(d.Handle.Size) //nolint:gosec // bounded by the store
}

// PayloadCodec is how the payload is encoded.
func (d *Delivery) PayloadCodec() codec.ID {
	if d.Handle.IsZero() {
		return codec.ID(d.Codec)
	}
	return codec.ID(d.Handle.Codec)
}

// Decode decodes the payload into v, a non-nil pointer, with the serializer
// that it was encoded with. Whether the result aliases the payload is the
// serializer's to say: those of raw bytes and tensors do.
func (d *Delivery) Decode(v any) error {
	s, err := d.flow.req.bus.codecs.ByID(d.PayloadCodec())
	if err == nil {
		err = s.Decode(d.Bytes(), v)
	}
	if err != nil {
		return fmt.Errorf("%w: decode %d bytes into %T: %w", ErrPayload, d.Size(), v, err)
	}
	return nil
}

// Tensor is the payload as a tensor whose data is a view of it.
func (d *Delivery) Tensor() (codec.Tensor, error) {
	if id := d.PayloadCodec(); id != codec.IDTensor {
		return codec.Tensor{}, fmt.Errorf("%w: it is encoded with codec %d, not as a tensor", ErrPayload, id)
	}
	t, err := codec.ViewTensor(d.Bytes())
	if err != nil {
		return codec.Tensor{}, fmt.Errorf("%w: %w", ErrPayload, err)
	}
	return t, nil
}

// Task is the request at the stage that received the delivery, or nil for the
// caller's results.
func (d *Delivery) Task() *Task { return d.flow.consumer }

// Keep takes the delivery out of the handler's hands: it stays unfinished, and
// holds its place in the edge's window and in the stage's MaxInflight, until
// the returned Kept is finished, from any goroutine. A request of which a stage
// kept a delivery cannot be replayed there.
func (d *Delivery) Keep() *Kept {
	t := d.flow.consumer
	switch {
	case t == nil:
		panic("bus: Keep is for a stage's delivery: the caller keeps a result by not finishing it")
	case t.stage.shared():
		d.kept = true // held already; now it is not the batch's to finish
	case d.state.CompareAndSwap(stateSent, stateHeld):
		t.everKept = true
		t.hold(d)
	default:
		panic("bus: Keep is for a handler's delivery, once, before the handler returns")
	}
	return &Kept{Emitter: Emitter{out: &t.outlet, kept: true, cause: d.fed.number()}, d: d}
}

var errFinished = errors.New("bus: delivery was finished before")

// Finish ends the work on a delivery that an actor, a batch or the caller
// holds: its payload and its place in the window are given back. A non-nil
// error fails the request. A second call returns an error.
func (d *Delivery) Finish(err error) error {
	if d.state.Load() == stateSent && d.flow.consumer != nil {
		panic("bus: a handler's delivery is finished by returning from the handler; Keep it to finish it later")
	}
	if !d.state.CompareAndSwap(stateHeld, stateFinished) {
		return errFinished
	}
	t := d.flow.consumer
	if err != nil && t != nil {
		t.failAt(d, err)
	}
	if d.message == nil { // as a rule, and it makes no closure
		d.end()
		return nil
	}
	d.whenUnread(d.end)
	return nil
}

// end gives a delivery back that was held and is finished.
func (d *Delivery) end() {
	t := d.flow.consumer
	switch {
	case d.flow.edge.leaves:
		d.giveBack()
		d.flow.req.partGone()
	case t == nil:
		d.giveBack()
		d.flow.req.resultFinished()
	case !t.stage.shared():
		d.giveBack()
		t.unhold()
	default:
		t.letGo(d)
	}
}

// Kept is a delivery that outlives its handler. Its emissions wait without
// holding up the stage; its methods are safe from any goroutine.
type Kept struct {
	Emitter
	d *Delivery
}

// Delivery is the delivery that was kept.
func (k *Kept) Delivery() *Delivery { return k.d }

// Finish gives the delivery back. A non-nil error fails the request. A second
// call returns an error.
func (k *Kept) Finish(err error) error { return k.d.Finish(err) }

// open takes the lease on the payload, or gets it from the edge's connector.
func (d *Delivery) open() error {
	if d.sentAt != 0 {
		d.flow.edge.latency.record(d.flow.req.bus.now() - time.Duration(d.sentAt))
	}
	if d.carried != nil {
		return d.unpack()
	}
	if d.opened || d.Handle.IsZero() {
		return nil
	}
	lease, err := d.flow.req.bus.store.Local().Take(d.Handle)
	if err != nil {
		d.Handle = messages.Handle{} // nothing is owed for it
		return fmt.Errorf("payload: %w", err)
	}
	d.lease, d.opened = lease, true
	return nil
}

// deliveries are recycled, unless they were in other hands than the bus's: a
// call that comes too late must find the delivery that it was meant for.
var deliveries = sync.Pool{New: func() any { return new(Delivery) }}

func newDelivery() *Delivery { return deliveries.Get().(*Delivery) }

// recycle is called by whoever finished d and is the last to know it.
func (d *Delivery) recycle() {
	*d = Delivery{}
	deliveries.Put(d)
}

// reclaim finishes a delivery that is in the bus's hands, which must not touch
// it afterwards, or one that was held when its stage is gone.
func (d *Delivery) reclaim() {
	d.awaitUnread()
	if d.state.Load() == stateSent { // nobody else knows it: no race to win
		d.giveBack()
		d.recycle()
	} else if d.state.CompareAndSwap(stateHeld, stateFinished) {
		d.giveBack()
	}
}

// copiedUnasked are so many bytes that a copy of a result takes without a look at the memory that is left.
const copiedUnasked = 1 << 20

// appendCopy appends a copy of a result that nothing is owed for. There is none of a payload in the memory of
// a GPU, of one that a connector has, or where the machine has no memory for it.
func (d *Delivery) appendCopy(to []*Delivery) []*Delivery {
	if d.carried != nil || d.flow.edge.spec.Tensors != TensorsDefault || d.open() != nil {
		return to
	}
	if n := d.Size(); n > copiedUnasked && memory.System().Check(uint64(n)) != nil {
		return to
	}
	c := newDelivery()
	c.Delivery, c.flow = d.Delivery, d.flow
	c.Codec, c.Handle = uint32(d.PayloadCodec()), messages.Handle{}
	if !d.Bare() {
		c.Inline = append([]byte{}, d.Bytes()...)
	}
	return append(to, c)
}

// discard finishes a delivery unseen, without giving credit back: it has none,
// or its request is over. It is safe with the flow's queue locked.
func (d *Delivery) discard() {
	d.fed.finish(d)
	d.releasePayload()
	d.recycle()
}

// giveBack releases the payload and returns the credit. Called once.
func (d *Delivery) giveBack() {
	d.fed.finish(d)
	d.releasePayload()
	if d.parked != 0 {
		d.flow.req.bus.joinBytes.Add(-d.parked)
	}
	d.spent(d.credit)
	d.unretain()
	d.flow.give(d.credit)
}

// spent tells the process that put the payload that credit comes back.
func (d *Delivery) spent(credit uint64) {
	if credit != 0 && d.put != nil {
		d.put.Spent(credit&bytesMask != 0)
	}
}

func (d *Delivery) releasePayload() {
	switch {
	case d.carried != nil:
		d.forget()
	case d.foreign != nil:
		d.foreign.Release()
	case d.Handle.IsZero():
	case d.opened:
		d.lease.Release()
	default:
		// One debt for each delivery: an error would mean that the accounts
		// are broken, which the check at Close reports.
		_ = d.flow.req.bus.store.Local().Drop(d.Handle)
	}
	if d.large != nil {
		d.large.Release()
	}
	if !d.Handle.IsZero() {
		d.flow.req.bus.settled(d.Handle)
	}
	unheld(d.put)
}

// errorAt says where a failure happened.
func (d *Delivery) errorAt(stage string, err error) *StageError {
	return &StageError{Stage: stage, Edge: d.Edge, Key: d.Key, Seq: d.Seq, Err: err}
}
