package bus

import (
	"errors"
	"time"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// ErrCanceled reports a wait that the caller's context ended.
var ErrCanceled = errors.New("bus: wait canceled")

// outputs sends the payloads that one request emits at one stage, or its inputs.
// Its lock orders the emissions on each edge.
type outputs struct {
	req   *Request
	task  *Task // nil: the caller
	edges []*edge

	mu       lockorder.Mutex[lockorder.Outputs] // guards the producer's side of the flows, and byKept
	producer *actors.Producer
	byKept   uint64 // emissions by kept deliveries

	spaceMu        lockorder.Mutex[lockorder.OutputsSpace] // guards the fields below
	spaceWaits     int                                     // emissions that wait for space
	spaceWaitBegan time.Time                               // when the first of them began to wait
	spaceDevice    shmstore.Device                         // the device on which it needs space, too; nil: it needs space in the store only
}

// beginSpaceWait notes, for reports, that an emission waits for space in the store and,
// unless dev is nil, on a device. The emission calls waited when the wait has ended.
func (o *outputs) beginSpaceWait(dev shmstore.Device) (waited func()) {
	o.spaceMu.Lock()
	defer o.spaceMu.Unlock()
	if o.spaceWaits++; o.spaceWaits == 1 {
		o.spaceWaitBegan, o.spaceDevice = time.Now(), dev
	}
	return func() {
		o.spaceMu.Lock()
		defer o.spaceMu.Unlock()
		o.spaceWaits--
	}
}

// spaceWaited is how long an emission has waited for space, and on which device; 0: no emission
// waits.
func (o *outputs) spaceWaited(now time.Time) (waited time.Duration, dev shmstore.Device) {
	o.spaceMu.Lock()
	defer o.spaceMu.Unlock()
	if o.spaceWaits == 0 {
		return 0, nil
	}
	return now.Sub(o.spaceWaitBegan), o.spaceDevice
}

// spaceWaiters is how many emissions wait for space.
func (o *outputs) spaceWaiters() int {
	o.spaceMu.Lock()
	defer o.spaceMu.Unlock()
	return o.spaceWaits
}

// sendSmall is the fast path of a small payload that travels inline along a
// single edge that has credit. For other payloads it does nothing and reports
// false.
func (o *outputs) sendSmall(p []byte, c codec.ID, em Emission) bool {
	if len(p) > smallBytes || len(o.edges) != 1 || em.to != "" || len(p) > o.req.bus.inlineBytes(o.edges[0]) {
		return false
	}
	ed := o.edges[0]
	f := o.req.flow(ed)
	price := o.req.bus.price(len(p))
	if ed.queues() || ed.path != nil || o.req.over() || em.check() != nil || !f.tryTakeWithSlot(price) {
		return false
	}
	var after AfterUnlock
	o.mu.Lock()
	if f.ended || o.req.over() { // the slow path returns the error
		o.mu.Unlock()
		f.giveCredit(oneDelivery | uint64(price))
		return false
	}
	d := newDelivery()
	d.Inline = d.small[:copy(d.small[:], p):len(p)]
	d.Codec = uint32(c)
	d.cost, d.origin = price, holdOrigin(em.Put)
	f.sent.copies++
	f.send(d, em, &after)
	o.mu.Unlock()
	after.Run()
	return true
}

// number makes d the next delivery of the flow.
func (f *flow) number(d *Delivery) {
	d.flow = f
	d.Request, d.Deadline = f.req.id, f.req.deadline
	if f.req.traced {
		d.Trace = f.req.trace
	}
	d.Edge, d.Seq, d.Attempt = f.edge.name, f.seq, f.attempt
	f.seq++
	if d.Seq < latencySampleFirst || d.Seq%latencySampleEvery == 0 {
		d.sentAt = max(int64(f.req.bus.now()), 1)
	}
}

// send, with the lock of the outputs held, numbers, counts and launches a delivery that has its payload.
func (f *flow) send(d *Delivery, em Emission, after *AfterUnlock) {
	f.number(d)
	d.Key, d.Attrs, d.EOS = em.Key, em.Attrs, em.Last
	if d.cause == 0 && f.req.bus.node && f.producer != nil {
		d.cause = f.producer.handling.Load()
		f.producer.emitted.Store(int64(f.req.bus.now()))
	}
	f.ended = em.Last
	f.sent.deliveries++
	f.sent.bytes += int64(d.Size())
	if d.Handle.IsZero() && d.foreign == nil && d.carried == nil && len(d.Inline) <= f.req.bus.inlineBytes(f.edge) {
		f.sent.inline++
	}
	f.launch(d, after)
}

// launch, with the lock of the outputs held, sends a numbered delivery.
func (f *flow) launch(d *Delivery, after *AfterUnlock) {
	d.credit = oneDelivery | uint64(d.cost)
	if d.cost == 0 {
		d.credit = 0
	}
	if f.edge.queues() {
		f.push(d, after)
		return
	}
	f.deliver(d, after)
}

// closeStreams ends the streams that have not ended. A stage that was sent no delivery before all of
// its inputs ended, and that does nothing at the end, is skipped: its streams end here, too, and so do
// those of further skipped stages, in the order of the stages.
func (o *outputs) closeStreams() {
	first := [1]*outputs{o}
	for due := first[:]; len(due) > 0; due = due[1:] {
		for _, ed := range due[0].edges {
			f := o.req.flow(ed)
			if due[0].endStream(f) && f.consumer.trySkip() {
				due = append(due, &f.consumer.outputs)
			}
		}
		if due[0] != o {
			o.req.taskDone()
		}
	}
}

// endStream ends a stream that has not ended. An end takes no slot: where the consumer has none and
// no delivery waits for one, the end stays pending until the consumer gets a slot.
func (o *outputs) endStream(f *flow) (unsaid bool) {
	var after AfterUnlock
	defer after.Run()
	o.mu.Lock()
	defer o.mu.Unlock()
	if f.ended || o.req.over() {
		return false
	}
	f.ended = true
	f.endPending = !f.consumerOpen() && f.queued.Load() == 0
	if !f.endPending {
		f.sendEnd(&after)
	}
	return f.endPending
}

// sendEnd, with the lock of the outputs held, sends the end of the stream.
func (f *flow) sendEnd(after *AfterUnlock) {
	d := newDelivery()
	f.number(d)
	d.EOS = true
	f.launch(d, after)
}

// sendPendingEnd sends a pending end to a consumer that has got a slot.
func (f *flow) sendPendingEnd() {
	var after AfterUnlock
	defer after.Run()
	o := f.outputs()
	o.mu.Lock()
	defer o.mu.Unlock()
	if f.endPending && !o.req.over() {
		f.endPending = false
		f.queuedSince.Store(0)
		f.sendEnd(&after)
	}
}

// trySkip is called for each end that stays pending. With the last one it skips a stage that does nothing
// at the end, and reports true; any other stage asks for a slot.
func (t *Task) trySkip() bool {
	r := t.outputs.req
	if int(t.pendingEnds.Add(1)) < len(t.stage.in) {
		return false
	}
	if t.stage.passive() {
		if !r.bus.admission.skip(t) {
			return false
		}
		for _, e := range t.stage.in { // a waiting input fails then with ErrAfterEnd
			r.flow(e).resumeProducer()
		}
		return true
	}
	r.flow(t.stage.in[0]).queuedSince.CompareAndSwap(0, time.Now().UnixNano()) // for reports
	r.wantSlot(t)
	return false
}

func (o *outputs) name() string {
	if o.task == nil {
		return ""
	}
	return o.task.stage.spec.Name
}

// nextSeq is the sequence of the next delivery on an edge.
func (o *outputs) nextSeq(ed *edge) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.req.flow(ed).seq
}

// emissionError adds stage, edge, key and sequence to the error of an emission.
// The error of an ended request and ErrCanceled stay as they are.
func (o *outputs) emissionError(ed *edge, seq uint64, key string, err error) error {
	if o.req.over() || errors.Is(err, ErrCanceled) {
		return err
	}
	return &StageError{Stage: o.name(), Edge: ed.name, Key: key, Seq: seq, Err: err}
}
