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

// Task is one request at one stage: what a handler works with. Its emissions
// are for the handler's goroutine, while the handler runs; to emit later, or
// from elsewhere, Keep a delivery.
type Task struct {
	Emitter
	// State is the stage's own, kept for it from one delivery of the request
	// to the next. It is nil at first, and again when the request is replayed.
	State any

	stage  *stage
	outlet outputs
	slot   atomic.Pointer[slot] // held while the request is open here
	stay   atomic.Int32         // changed under admission.mu
	unsaid atomic.Int32         // inputs that have ended before the stage was sent anything: see outlet.endStream

	// Guarded by admission.mu.
	heldAt  int   // the place among the stage's holders
	granted *Task // the next of a list of grants

	handling atomic.Uint32 // the fed delivery that is being handled, for a node
	emitted  atomic.Int64  // when something was emitted for it last, since the bus was opened

	// held counts deliveries in other hands than the worker's.
	held     atomic.Int32
	answered atomic.Bool // of a remote stage: its replicas have emitted all
	heldMu   lockorder.Mutex[lockorder.TaskHeld]
	inHand   []*Delivery // those held by a batch or an actor, oldest first
	behind   []*Delivery // finished, and to be given back behind what is queued

	// For the worker's goroutine only.
	pending  []*Delivery // input held back while an out-edge's queue is not empty
	retained []*Delivery // input handled and kept for a replay

	replaying []*Delivery // input that a replay has yet to come to
	attempt   int         // replays so far
	everKept  bool        // a handler kept a delivery: a replay could not give it back
	markKept  uint64      // outlet.byKept when the output was marked
	ending    bool        // End has run, or is running
	told      bool        // the user's actor, or the replicas, know that the request is over
	leaving   bool        // a farewell is on its way
	left      bool        // the slot is given back
	round     uint64      // the last of a batch's rounds that it was in
}

// Request is the id of the request.
func (t *Task) Request() messages.RequestID { return t.outlet.req.id }

// Context is done when the request is over; its deadline is the request's.
func (t *Task) Context() context.Context { return t.outlet.req.context() }

// Stage is the name of the stage.
func (t *Task) Stage() string { return t.stage.spec.Name }

// Replica is the number, from 0, of the replica that the request is open at:
// for a stage whose replicas have something of their own, such as a device. It
// is for the handler's goroutine.
func (t *Task) Replica() int { return t.slot.Load().worker.replica }

// Fail ends the request with an error that names the stage.
func (t *Task) Fail(err error) {
	t.outlet.req.end(Failed, &StageError{Stage: t.stage.spec.Name, Err: err})
}

// briefly is how long after its last emission a handler may take to return, for what it emits
// to wait for that.
const briefly = 50 * time.Microsecond

// endsSoon reports whether what the handler emits now can wait for its return: it returned
// briefly after its emission the last time.
func (t *Task) endsSoon() bool {
	if t == nil || t.handling.Load() == 0 {
		return false
	}
	s := t.slot.Load()
	return s != nil && s.worker.brief.Load()
}

// failWhere is Fail for an error that may say where it happened.
func (t *Task) failWhere(err error) {
	if at, ok := errors.AsType[*StageError](err); ok {
		t.outlet.req.end(Failed, at)
		return
	}
	t.Fail(err)
}

// failAtEnd is Fail for an error of the stage's End, which may say where it happened.
func (t *Task) failAtEnd(err error) {
	const what = "end of stream: "
	at, said := placeIn(err, t.stage.spec.Name)
	text := err.Error()
	if said {
		text = at.TextBeside(err)
	}
	if !strings.HasPrefix(text, what) { // as that of a node's own End does, which comes from there
		err = fmt.Errorf(what+"%w", err)
	}
	if said {
		t.outlet.req.end(Failed, err)
		return
	}
	t.Fail(err)
}

func (t *Task) failAt(d *Delivery, err error) {
	d.fed.fail(d, err)
	t.outlet.req.fail(d, t.stage.spec.Name, err)
}

// failAtBehind is failAt for callers that hold locks.
func (t *Task) failAtBehind(d *Delivery, err error, after *AfterUnlock) {
	after.Fail(t.outlet.req, d.placed(t.stage.spec.Name, err))
}

// failBehind is Fail for callers that hold locks.
func (t *Task) failBehind(err error, after *AfterUnlock) {
	after.Fail(t.outlet.req, &StageError{Stage: t.stage.spec.Name, Err: err})
}

// hold notes a delivery that leaves the worker's hands.
func (t *Task) hold(d *Delivery) {
	t.held.Add(1)
	if t.stage.shared() {
		t.takeIn(d)
	}
}

// unhold is called when such a delivery was finished.
func (t *Task) unhold() {
	switch {
	case t.held.Add(-1) != 0:
	case t.stage.remote == nil:
		t.wake()
	case t.answered.Load() || t.outlet.req.over():
		t.poll()
	}
}

// poll is nudge for callers that hold no locks: the worker of a remote stage, which runs no
// user's code, looks at once.
func (t *Task) poll() {
	if s := t.slot.Load(); s != nil {
		s.worker.actor.PostAndRun(t)
	}
}

// wake has the worker look at the task again.
func (t *Task) wake() {
	if s := t.slot.Load(); s != nil {
		s.worker.actor.Post(t)
	}
}

// inputEnded reports whether every in-edge's stream has ended.
func (t *Task) inputEnded() bool {
	for _, e := range t.stage.in {
		if !t.outlet.req.flow(e).in.eos {
			return false
		}
	}
	return true
}

// clogged reports whether an out-edge's queue holds something back.
func (t *Task) clogged() bool {
	for _, e := range t.stage.out {
		if e.spec.Policy != DropOldest && t.outlet.req.flow(e).queued.Load() > 0 {
			return true
		}
	}
	return false
}

// markOutput remembers how far each output was, for a retry to start from.
func (t *Task) markOutput() {
	t.outlet.mu.Lock()
	defer t.outlet.mu.Unlock()
	for _, e := range t.stage.out {
		f := t.outlet.req.flow(e)
		f.mark = f.seq
	}
	t.markKept = t.outlet.byKept
}

// outputIsOwn reports whether all that was sent since the output was marked
// came from the handler. What a kept delivery sent in between cannot be told
// from it, and would be lost with it in a retry.
func (t *Task) outputIsOwn() bool {
	t.outlet.mu.Lock()
	defer t.outlet.mu.Unlock()
	return t.outlet.byKept == t.markKept
}

// rewindOutput numbers what a retry sends as what it sent before, so that
// consumers can tell repeats.
func (t *Task) rewindOutput(toStart bool) {
	t.outlet.mu.Lock()
	defer t.outlet.mu.Unlock()
	for _, e := range t.stage.out {
		f := t.outlet.req.flow(e)
		f.seq, f.attempt, f.ended = f.mark, f.attempt+1, false
		if toStart {
			f.seq = 0
		}
	}
}

// retain keeps the payload of a handled delivery for a replay. Its place in
// the window is given back, its bytes are not.
func (t *Task) retain(d *Delivery) {
	t.retained = append(t.retained, d)
	d.retainBytes()()
}

// retainBytes keeps the delivery's bytes. The function that it returns gives the
// delivery's place in the window back.
func (d *Delivery) retainBytes() (givePlace func()) {
	if d.credit < oneDelivery { // it was retained before
		return func() {}
	}
	d.credit -= oneDelivery
	f, put := d.flow, d.put // the delivery may be given back before the place is
	f.retained.Add(d.cost)
	return func() {
		if put != nil {
			put.Spent(false)
		}
		f.give(oneDelivery)
	}
}

// unretain ends the retention of a delivery whose bytes are about to be given back.
func (d *Delivery) unretain() {
	if d.credit != 0 && d.credit < oneDelivery { // the place alone came back before
		d.flow.retained.Add(-int64(d.credit))
	}
}

// awaitSenders returns when whoever was sending to this task when its request
// ended is done with it. All sending is done under these locks, and nothing is
// sent under them for a request that is over.
func (t *Task) awaitSenders() {
	for _, e := range t.stage.in {
		t.outlet.req.flow(e).awaitSender()
	}
}

// awaitSender returns when what was being sent on the flow when it was called is in order.
func (f *flow) awaitSender() {
	lockorder.AssertNone("senders are waited for")
	barrier(&f.outlet().mu)
	barrier(&f.qmu)
}

// barrier returns when whoever held the lock when it was called has let go.
func barrier(mu sync.Locker) {
	mu.Lock()
	mu.Unlock() //nolint:gocritic,staticcheck // nothing to do while it is held
}

// discardInput finishes, unseen, all input that the worker still has.
func (t *Task) discardInput() {
	for _, e := range t.stage.in {
		in := &t.outlet.req.flow(e).in
		reclaimAll(&in.parked)
	}
	reclaimAll(&t.pending)
	t.dropRetained()
}

// dropRetained finishes what was kept for a replay.
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
