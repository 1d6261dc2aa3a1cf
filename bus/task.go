package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/messages"
)

// Task is one request at one stage, for its handler. Only the handler's
// goroutine may emit by it, while the handler runs; to emit later, or from
// another goroutine, Keep a delivery.
type Task struct {
	Emitter
	// State belongs to the stage: the bus keeps it from one delivery of the
	// request to the next. It is nil at first, and at the start of a replay.
	State any

	stage       *stage
	outputs     outputs
	slot        atomic.Pointer[slot] // nil: the request has no slot here
	stay        atomic.Int32         // changed under admission.mu
	pendingEnds atomic.Int32         // inputs that ended before the stage was sent a delivery: see outputs.endStream

	// Guarded by admission.mu.
	heldAt  int   // its index in stage.holders
	granted *Task // the next task in a list of grants

	handling atomic.Uint32 // in a node: the host's number of the delivery that is being handled
	emitted  atomic.Int64  // the time of its last emission, since the bus was opened

	// held counts deliveries that the worker has passed to a holder.
	held               atomic.Int32
	answered           atomic.Bool // of a remote stage: its replicas have ended the task
	heldMu             lockorder.Mutex[lockorder.TaskHeld]
	inHand             []*Delivery // deliveries held by a batch or an actor, oldest first
	releaseAfterOutput []*Delivery // finished deliveries, to be released when the output queues are empty

	// Only for the worker's goroutine:
	pending  []*Delivery // input held back while an out-edge's queue is not empty
	retained []*Delivery // input handled and kept for a replay

	replaying    []*Delivery // input that a replay has not reached
	attempt      int         // replays so far
	everKept     bool        // a handler kept a delivery: a replay could not repeat it
	markKept     uint64      // outputs.byKept when the output was marked
	ending       bool        // End has run, or is running
	endAnnounced bool        // the program's actor, or the replicas, were told that the request is over
	gonePosted   bool        // taskGone is in the mailbox
	stayEnded    bool        // the slot is returned
	round        uint64      // the last round of a batch that had a delivery of it
}

// Request is the id of the request.
func (t *Task) Request() messages.RequestID { return t.outputs.req.id }

// Context is done when the request is over; its deadline is the request's.
func (t *Task) Context() context.Context { return t.outputs.req.context() }

// Stage is the name of the stage.
func (t *Task) Stage() string { return t.stage.spec.Name }

// Replica is the number, from 0, of the request's replica, for stages whose
// replicas have own resources, such as a device. It is for the handler's
// goroutine.
func (t *Task) Replica() int { return t.slot.Load().worker.replica }

// Fail ends the request with an error that names the stage.
func (t *Task) Fail(err error) {
	t.outputs.req.end(Failed, &StageError{Stage: t.stage.spec.Name, Err: err})
}

// briefReturn is the longest time between the last emission and the return of a handler for which
// emissions may wait for the return.
const briefReturn = 50 * time.Microsecond

// endsSoon reports whether an emission of the handler can wait for its return: the last handler
// returned within briefReturn of its last emission.
func (t *Task) endsSoon() bool {
	if t == nil || t.handling.Load() == 0 {
		return false
	}
	s := t.slot.Load()
	return s != nil && s.worker.returnsBriefly.Load()
}

// failLocated is Fail for an error that may have a location.
func (t *Task) failLocated(err error) {
	if at, ok := errors.AsType[*StageError](err); ok {
		t.outputs.req.end(Failed, at)
		return
	}
	t.Fail(err)
}

// failAtEnd is Fail for an error of the stage's End, which may have a location.
func (t *Task) failAtEnd(err error) {
	const what = "end of stream: "
	at, located := locationIn(err, t.stage.spec.Name)
	text := err.Error()
	if located {
		text = at.TextWithoutLocation(err)
	}
	if !strings.HasPrefix(text, what) { // the error of a node's End has the prefix already
		err = fmt.Errorf(what+"%w", err)
	}
	if located {
		t.outputs.req.end(Failed, err)
		return
	}
	t.Fail(err)
}

func (t *Task) failAt(d *Delivery, err error) {
	d.fed.fail(d, err)
	t.outputs.req.fail(d, t.stage.spec.Name, err)
}

// failAtAfterUnlock is failAt for callers that hold locks.
func (t *Task) failAtAfterUnlock(d *Delivery, err error, after *AfterUnlock) {
	after.Fail(t.outputs.req, d.withLocation(t.stage.spec.Name, err))
}

// failAfterUnlock is Fail for callers that hold locks.
func (t *Task) failAfterUnlock(err error, after *AfterUnlock) {
	after.Fail(t.outputs.req, &StageError{Stage: t.stage.spec.Name, Err: err})
}

// hold counts a delivery that the worker passes to a holder.
func (t *Task) hold(d *Delivery) {
	t.held.Add(1)
	if t.stage.shared() {
		t.addInHand(d)
	}
}

// unhold is called when a held delivery was finished. After the last one it wakes the worker.
func (t *Task) unhold() {
	switch {
	case t.held.Add(-1) != 0:
	case t.stage.remote == nil:
		t.wake()
	case t.answered.Load() || t.outputs.req.over():
		t.wakeAndRun()
	}
}

// wakeAndRun is wake for callers without locks: the worker of a remote stage, which runs no user
// code, may run on the caller's goroutine.
func (t *Task) wakeAndRun() {
	if s := t.slot.Load(); s != nil {
		s.worker.actor.PostAndRun(t)
	}
}

// wake posts the task to its worker, which checks it again.
func (t *Task) wake() {
	if s := t.slot.Load(); s != nil {
		s.worker.actor.Post(t)
	}
}

// inputEnded reports whether every in-edge's stream has ended.
func (t *Task) inputEnded() bool {
	for _, e := range t.stage.in {
		if !t.outputs.req.flow(e).in.eos {
			return false
		}
	}
	return true
}

// outputQueued reports whether the queue of an out-edge that does not drop has deliveries.
func (t *Task) outputQueued() bool {
	for _, e := range t.stage.out {
		if e.spec.Policy != DropOldest && t.outputs.req.flow(e).queued.Load() > 0 {
			return true
		}
	}
	return false
}

// markOutput remembers the position of each output, for a retry.
func (t *Task) markOutput() {
	t.outputs.mu.Lock()
	defer t.outputs.mu.Unlock()
	for _, e := range t.stage.out {
		f := t.outputs.req.flow(e)
		f.mark = f.seq
	}
	t.markKept = t.outputs.byKept
}

// outputIsOwn reports whether the handler made all emissions since the output
// was marked. Emissions of a kept delivery in between could not be told apart,
// and a retry would lose them.
func (t *Task) outputIsOwn() bool {
	t.outputs.mu.Lock()
	defer t.outputs.mu.Unlock()
	return t.outputs.byKept == t.markKept
}

// rewindOutput gives the emissions of a retry the numbers of those before, so
// that consumers recognise repeats.
func (t *Task) rewindOutput(toStart bool) {
	t.outputs.mu.Lock()
	defer t.outputs.mu.Unlock()
	for _, e := range t.stage.out {
		f := t.outputs.req.flow(e)
		f.seq, f.attempt, f.ended = f.mark, f.attempt+1, false
		if toStart {
			f.seq = 0
		}
	}
}

// retain keeps the payload of a handled delivery for a replay. Its credit for
// one delivery is returned, the credit for its bytes is not.
func (t *Task) retain(d *Delivery) {
	t.retained = append(t.retained, d)
	d.retainBytes()()
}

// retainBytes keeps the credit for the delivery's bytes. giveCredit returns the
// credit for one delivery.
func (d *Delivery) retainBytes() (giveCredit func()) {
	if d.credit < oneDelivery { // it is retained already
		return func() {}
	}
	d.credit -= oneDelivery
	f, origin := d.flow, d.origin // the delivery may be released before giveCredit is called
	f.retained.Add(d.cost)
	return func() {
		if origin != nil {
			origin.Spent(false)
		}
		f.giveCredit(oneDelivery)
	}
}

// unretain ends the retention of a delivery whose credit for the bytes is about to be returned.
func (d *Delivery) unretain() {
	if d.credit != 0 && d.credit < oneDelivery { // the credit for one delivery was returned before
		d.flow.retained.Add(-int64(d.credit))
	}
}

// awaitSenders waits for the goroutines that were sending to this task when its
// request ended. They send under the locks of the flow, and under these locks
// nothing is sent for a request that is over.
func (t *Task) awaitSenders() {
	for _, e := range t.stage.in {
		t.outputs.req.flow(e).awaitSender()
	}
}

// awaitSender returns when the deliveries that were being sent on the flow are in order.
func (f *flow) awaitSender() {
	lockorder.AssertNone("senders are waited for")
	barrier(&f.outputs().mu)
	barrier(&f.qmu)
}

// barrier returns when the present holder of the lock has released it.
func barrier(mu sync.Locker) {
	mu.Lock()
	mu.Unlock() //nolint:gocritic,staticcheck // nothing to do while it is held
}

// discardInput finishes, unhandled, all input that the worker still has.
func (t *Task) discardInput() {
	for _, e := range t.stage.in {
		in := &t.outputs.req.flow(e).in
		reclaimAll(&in.parked)
	}
	reclaimAll(&t.pending)
	t.dropRetained()
}

// dropRetained finishes the input that is kept for a replay.
func (t *Task) dropRetained() {
	reclaimAll(&t.retained)
	reclaimAll(&t.replaying)
}

func reclaimAll(ds *[]*Delivery) {
	for _, d := range *ds {
		d.reclaim()
	}
	*ds = nil
}
