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

// smallBytes is the payload that fits into the Delivery itself: an encoded value of 64
// bytes.
const smallBytes = 80

// Delivery is one message of one request on one edge, as a stage receives it.
// Its payload is not copied: Bytes is a view of shared memory. The embedded
// envelope is read-only.
//
// A handler's delivery is finished when the handler returns, unless it was
// kept; an actor or a caller finishes a received delivery with Finish. A
// delivery must not be used after that.
//
// It belongs to one goroutine at a time: the sender passes it to the worker, and the worker
// to the holder. Only state is shared: by it goroutines decide which of them finishes the
// delivery.
type Delivery struct {
	messages.Delivery

	flow       *flow
	lease      shmstore.Lease
	cost       int64
	sentAt     int64 // nanoseconds since the bus opened; 0: not sampled
	state      atomic.Uint32
	opened     bool              // the lease is taken
	kept       bool              // by the handler of a batch, which does not finish it then
	handled    bool              // its handler has returned, and emits nothing more for it
	tries      int               // repeats after a panic
	credit     uint64            // that the flow gets back when it is finished
	joinBytes  int64             // bytes counted in Bus.joinBytes
	foreign    *accounts.Payload // the memory of Inline, when it is neither in d nor on the heap
	carried    *carried          // the payload in a connector, until the delivery is opened
	fed        *fed              // the answer to the process that sent it; nil: this process sent it
	origin     Origin            // of a payload that a client has put; nil: another payload
	cause      uint32            // in a node: the host's number of the delivery for which it was emitted
	message    *lane.Message     // the payload, opened as a bundle of tensors
	ownSegment *accounts.Segment // the segment of a large payload, once it is exposed to other processes
	small      [smallBytes]byte
}

// States of a delivery. It is finished once. A sent delivery is known to its worker alone. Of a held
// one, a compare-and-swap to finished decides which caller gives it back. The bus recycles only
// deliveries that were never held.
//
//	                     +--> waits in a queue, where the edge queues --+
//	                     |                                              v
//	credit -> number -> send -------------------------------------> mailbox       state: sent
//	                                                                    |
//	      finished <-- handler returns <-- handler runs <-- lease <-- accept      still sent
//	          ^                                 |
//	          +--------- Finish <--- Keep, Batch, Props, Recv                     held
//
// The stream is locked from number to deliver. On the way the following is given back:
//
//   - Delivery.prepare: all of the emission, if the edge's connector fails;
//   - flow.launch, into a full queue that drops: the oldest payload of the queue;
//   - flow.deliver: the payload, if the request has left the stage;
//   - Task.accept: payload and credit of a request that is over, of a repeat, or if the sequence is
//     broken;
//   - worker.park, in a join: credit; the bytes count against the join space until the inputs are
//     handled;
//   - worker.handle: lease and credit, through Delivery.reclaim, when the handler has returned; with
//     tensors on a GPU, when the receiver's streams have written ack too;
//   - Delivery.Keep, worker.gather, worker.passToActor: nothing; the holder calls Finish;
//   - Task.retain, for a replay: the delivery's count in the window; bytes and lease when the task
//     ends;
//   - results.push: nothing; the caller of Request.Recv calls Finish, or Request.Results does;
//   - worker.Dropped and Request.releaseQueued: all of a delivery that is never handled, because its
//     stage has stopped or its request has ended.
const (
	stateSent uint32 = iota
	stateHeld        // kept, or held by a batch, an actor, a replica or the caller
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

// Size is the size of the payload in bytes.
func (d *Delivery) Size() int {
	if d.carried != nil {
		return d.carried.size
	}
	return len(d.Inline) + int(d.Handle.Size) //nolint:gosec // bounded by the store
}

// PayloadCodec is the codec of the payload.
func (d *Delivery) PayloadCodec() codec.ID {
	if d.Handle.IsZero() {
		return codec.ID(d.Codec)
	}
	return codec.ID(d.Handle.Codec)
}

// Decode decodes the payload into v, a non-nil pointer, with the serializer of
// its codec. The result may alias the payload, as the serializer documents:
// raw bytes and tensors do.
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

// Keep leaves the delivery unfinished when the handler returns: it counts in
// the edge's window and in the stage's MaxInflight until the returned Kept is
// finished, from any goroutine. A request of which a stage kept a delivery
// cannot be replayed there.
func (d *Delivery) Keep() *Kept {
	t := d.flow.consumer
	switch {
	case t == nil:
		panic("bus: Keep is for a stage's delivery: the caller keeps a result by not finishing it")
	case t.stage.shared():
		d.kept = true // it is held already; now the batch does not finish it
	case d.state.CompareAndSwap(stateSent, stateHeld):
		t.everKept = true
		t.hold(d)
	default:
		panic("bus: Keep is for a handler's delivery, once, before the handler returns")
	}
	return &Kept{Emitter: Emitter{out: &t.outputs, kept: true, cause: d.fed.hostID()}, d: d}
}

var errFinished = errors.New("bus: delivery was finished before")

// Finish ends the work on a delivery that an actor, a batch or the caller
// holds: it releases the payload and returns the window credit. A non-nil
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
	if d.message == nil { // the usual case, without a closure
		d.releaseHeld()
		return nil
	}
	d.whenUnread(d.releaseHeld)
	return nil
}

// releaseHeld releases a held delivery that is finished.
func (d *Delivery) releaseHeld() {
	t := d.flow.consumer
	switch {
	case d.flow.edge.toOwner:
		d.release()
		d.flow.req.releaseRef()
	case t == nil:
		d.release()
		d.flow.req.resultFinished()
	case !t.stage.shared():
		d.release()
		t.unhold()
	default:
		t.releaseInHand(d)
	}
}

// Kept is a delivery that outlives the call of its handler. Its emissions wait
// without blocking the stage; its methods are safe from any goroutine.
type Kept struct {
	Emitter
	d *Delivery
}

// Delivery is the delivery that was kept.
func (k *Kept) Delivery() *Delivery { return k.d }

// Finish finishes the delivery. A non-nil error fails the request. A second
// call returns an error.
func (k *Kept) Finish(err error) error { return k.d.Finish(err) }

// openPayload takes the lease on the payload, or receives it from the edge's connector.
func (d *Delivery) openPayload() error {
	if d.sentAt != 0 {
		d.flow.edge.latency.record(d.flow.req.bus.now() - time.Duration(d.sentAt))
	}
	if d.carried != nil {
		return d.receiveCarried()
	}
	if d.opened || d.Handle.IsZero() {
		return nil
	}
	lease, err := d.flow.req.bus.store.Local().Take(d.Handle)
	if err != nil {
		d.Handle = messages.Handle{} // there is no lease to release
		return fmt.Errorf("payload: %w", err)
	}
	d.lease, d.opened = lease, true
	return nil
}

// deliveries recycles deliveries that only the bus has held: a late call of
// another holder must find its own delivery.
var deliveries = sync.Pool{New: func() any { return new(Delivery) }}

func newDelivery() *Delivery { return deliveries.Get().(*Delivery) }

// recycle reuses d, which is finished and has no other reference.
func (d *Delivery) recycle() {
	*d = Delivery{}
	deliveries.Put(d)
}

// reclaim finishes a delivery that only the bus holds, or one that was held by a
// stage that has stopped. The caller must not use it afterwards.
func (d *Delivery) reclaim() {
	d.awaitUnread()
	if d.state.Load() == stateSent { // there is no other holder, and so no race
		d.release()
		d.recycle()
	} else if d.state.CompareAndSwap(stateHeld, stateFinished) {
		d.release()
	}
}

// uncheckedCopyBytes is the size up to which a result is copied without a check of the free memory.
const uncheckedCopyBytes = 1 << 20

// appendCopy appends a copy of a result on the heap, without lease and credit. A payload in the memory of a GPU or
// in a connector is not copied, nor one for which the machine has no memory.
func (d *Delivery) appendCopy(to []*Delivery) []*Delivery {
	if d.carried != nil || d.flow.edge.spec.Tensors != TensorsDefault || d.openPayload() != nil {
		return to
	}
	if n := d.Size(); n > uncheckedCopyBytes && memory.System().Check(uint64(n)) != nil {
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

// discard finishes a delivery unhandled, without returning credit: it has none,
// or its request is over. It is safe with the flow's queue locked.
func (d *Delivery) discard() {
	d.fed.finish(d)
	d.releasePayload()
	d.recycle()
}

// release releases the payload and returns the credit. It is called once.
func (d *Delivery) release() {
	d.fed.finish(d)
	d.releasePayload()
	if d.joinBytes != 0 {
		d.flow.req.bus.joinBytes.Add(-d.joinBytes)
	}
	d.notifyOrigin(d.credit)
	d.unretain()
	d.flow.giveCredit(d.credit)
}

// notifyOrigin tells the client that has put the payload that its credit is returned.
func (d *Delivery) notifyOrigin(credit uint64) {
	if credit != 0 && d.origin != nil {
		d.origin.Spent(credit&bytesMask != 0)
	}
}

func (d *Delivery) releasePayload() {
	switch {
	case d.carried != nil:
		d.cleanUpCarried()
	case d.foreign != nil:
		d.foreign.Release()
	case d.Handle.IsZero():
	case d.opened:
		d.lease.Release()
	default:
		// Each delivery has one debt in the store: an error means broken
		// accounts, which the check at Close reports.
		_ = d.flow.req.bus.store.Local().Drop(d.Handle)
	}
	if d.ownSegment != nil {
		d.ownSegment.Release()
	}
	if !d.Handle.IsZero() {
		d.flow.req.bus.payloadReleased(d.Handle)
	}
	unholdOrigin(d.origin)
}

// errorAt adds stage, edge, key and sequence to an error.
func (d *Delivery) errorAt(stage string, err error) *StageError {
	return &StageError{Stage: stage, Edge: d.Edge, Key: d.Key, Seq: d.Seq, Err: err}
}
