package bus

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// worker is the receiver of one actor of a stage: it takes deliveries in,
// checks their order, and calls the handler. Its methods run on the actor's
// goroutine, except Failed and Dropped.
type worker struct {
	bus            *Bus
	stage          *stage
	replica        int
	actor          *actors.Stage
	handlerLock    handlerLock
	producer       *actors.Producer
	batcher        *actors.Batcher[*Delivery]
	log            *slog.Logger
	panics         atomic.Int64
	returnsBriefly atomic.Bool // the last handler returned within briefReturn of its last emission

	// The work of the present handler, for Failed, which runs while the actor is stopped.
	task        *Task
	parts       []*Delivery
	partsBuf    [1]*Delivery // backs parts for all but joins and batches
	onRestarted func()       // run by Restarted
	batchRetry  []*Delivery  // of a failed batch, to be retried one by one
	batchRest   []*Delivery  // of a batch, for further rounds
	round       uint64       // counts the rounds
}

// Ended tells an actor (StageSpec.Props) that a request is over while the actor
// holds deliveries of it. The actor should finish them: until then they keep
// their payloads and the request keeps its slot, and the bus cannot close.
type Ended struct{ Task *Task }

// batchDue tells a batching worker that a batch has waited long enough.
type batchDue struct{ batch uint64 }

// taskGone follows the last delivery of an ended request in a worker's mailbox:
// behind it there is none of the request.
type taskGone struct{ task *Task }

// Receive implements actors.Receiver. A *Task asks the worker to check the task again.
func (w *worker) Receive(message any) {
	switch m := message.(type) {
	case *Delivery:
		w.arrive(m)
	case *Task:
		w.resume(m)
	case taskGone:
		w.endStay(m.task)
	case batchDue:
		w.batcher.Due(m.batch)
	default:
		w.actor.Pass(message)
	}
}

func (w *worker) arrive(d *Delivery) {
	t := d.flow.consumer
	if !t.accept(d) {
		return
	}
	if w.stage.shared() && (len(t.pending) > 0 || t.outputQueued()) {
		t.pending = append(t.pending, d)
		return
	}
	w.dispatch(t, d)
}

// accept takes in a delivery that is the next of its stream. It releases any other delivery, and all of a
// request that is over, and reports false.
func (t *Task) accept(d *Delivery) bool {
	next := !t.outputs.req.over()
	if next {
		var err error
		if next, err = d.flow.accept(d); err != nil {
			t.failAt(d, err)
		}
	}
	if !next {
		d.reclaim()
	}
	return next
}

// dispatch starts the work on an accepted delivery.
func (w *worker) dispatch(t *Task, d *Delivery) {
	spec := &w.stage.spec
	switch {
	case spec.Props != nil:
		w.passToActor(t, d)
	case d.Bare():
		d.reclaim()
	case spec.Join != nil:
		w.park(t, d)
	case spec.Batch != nil:
		w.gather(t, d)
	default:
		w.handleOne(t, d)
	}
	if spec.Join != nil {
		w.join(t)
	}
	w.tryEndTask(t)
}

func (w *worker) handleOne(t *Task, d *Delivery) {
	w.partsBuf[0] = d
	w.handle(t, w.partsBuf[:])
}

// handle calls the handler with one delivery, or one of each branch, and
// finishes the deliveries that the handler did not keep.
func (w *worker) handle(t *Task, parts []*Delivery) {
	w.task, w.parts = t, parts
	spec := &w.stage.spec
	err := openAll(parts)
	if err == nil {
		if spec.State == StateNone && spec.Attempts > 0 {
			t.markOutput()
		}
		if w.bus.node {
			t.handling.Store(parts[0].fed.hostID())
		}
		err = w.call(t, parts)
		w.noteBriefReturn(t, parts[0])
	}
	w.task, w.parts = nil, nil
	if err != nil {
		t.failAt(parts[0], err)
	}
	for _, d := range parts {
		w.finish(t, d)
	}
}

func openAll(parts []*Delivery) error {
	for _, d := range parts {
		if err := d.openPayload(); err != nil {
			return err
		}
	}
	return nil
}

// noteBriefReturn notes, in a node, whether the handler has returned within briefReturn of its last
// emission. If the handler kept its delivery, no finish follows with which the emission could be batched.
func (w *worker) noteBriefReturn(t *Task, d *Delivery) {
	if at := t.emitted.Swap(0); at != 0 {
		w.returnsBriefly.Store(d.state.Load() == stateSent && w.bus.now()-time.Duration(at) < briefReturn)
	}
}

// call runs the handler under the replica's handlerLock.
func (w *worker) call(t *Task, parts []*Delivery) error {
	lockorder.AssertNone("a handler is called")
	w.handlerLock.lock(t.outputs.req.id, 0)
	defer w.handlerLock.unlock()
	if w.stage.spec.Join != nil {
		return w.stage.spec.Join(t, parts)
	}
	return w.stage.spec.Handle(t, parts[0])
}

func (w *worker) finish(t *Task, d *Delivery) {
	if d.state.Load() != stateSent {
		return // kept
	}
	d.awaitUnread()
	d.handled = true
	if w.stage.spec.Replay && !t.outputs.req.over() {
		d.fed.retain(d) // its outputs are sent
		t.retain(d)
		return
	}
	d.reclaim()
}

// resume continues a task after a change for which it may have waited.
func (w *worker) resume(t *Task) {
	if t.stayEnded {
		return
	}
	t.releaseFinished()
	for len(t.pending) > 0 && !t.outputQueued() && !t.outputs.req.over() {
		d := t.pending[0]
		t.pending = t.pending[1:]
		w.dispatch(t, d)
	}
	w.tryEndTask(t)
}

// tryEndTask ends the task when it has no work left: it runs End, closes the
// outputs and returns the slot.
func (w *worker) tryEndTask(t *Task) {
	req := t.outputs.req
	if req.over() {
		w.releaseEnded(t)
		return
	}
	if t.ending || t.held.Load() > 0 || len(t.pending) > 0 || !t.inputEnded() {
		return
	}
	t.ending = true
	if w.stage.spec.End != nil {
		w.task = t
		err := w.callEnd(t)
		w.task = nil
		if err != nil {
			t.failAtEnd(err)
		}
	}
	t.dropRetained()
	w.closeTask(t)
}

// closeTask ends the task's outputs, and its stay at the stage.
func (w *worker) closeTask(t *Task) {
	t.outputs.closeStreams()
	w.endStay(t)
	t.outputs.req.taskDone()
}

// releaseEnded releases what a task has of a request that is over.
func (w *worker) releaseEnded(t *Task) {
	t.discardInput()
	w.ungather(t)
	if w.stage.spec.Props != nil && t.held.Load() > 0 && !t.endAnnounced {
		t.endAnnounced = true
		w.actor.Pass(&Ended{Task: t})
	}
	w.postTaskGone(t)
}

// postTaskGone posts taskGone for a request that is over, once no holder has a delivery of it.
func (w *worker) postTaskGone(t *Task) {
	if t.held.Load() == 0 && !t.stayEnded && !t.gonePosted {
		t.gonePosted = true
		t.awaitSenders()
		w.actor.Post(taskGone{t})
	}
}

func (w *worker) callEnd(t *Task) error {
	lockorder.AssertNone("a handler is called")
	w.handlerLock.lock(t.outputs.req.id, 0)
	defer w.handlerLock.unlock()
	return w.stage.spec.End(t)
}

// endStay returns the task's slot.
func (w *worker) endStay(t *Task) {
	if t.stayEnded {
		return
	}
	t.stayEnded = true
	if !w.stage.shared() {
		w.producer.Close()
	}
	t.outputs.req.releaseSlot(t)
}

// park sets an input aside until the other branches have theirs. Its credit is
// returned, so that a branch that runs ahead blocks no other; its bytes count
// against JoinBytes.
func (w *worker) park(t *Task, d *Delivery) {
	d.notifyOrigin(d.credit)
	d.flow.giveCredit(d.credit)
	d.credit, d.joinBytes = 0, d.cost
	in := &d.flow.in
	in.parked = append(in.parked, d)
	if held := w.bus.joinBytes.Add(d.cost); held > w.bus.joinLimit {
		t.failAt(d, fmt.Errorf("%w: inputs that wait in joins hold %d bytes, JoinBytes is %d; on this edge %d deliveries wait for another branch",
			ErrJoinFull, held, w.bus.joinLimit, len(in.parked)))
	}
}

// join handles inputs as long as every branch has one.
func (w *worker) join(t *Task) {
	for parts := t.joined(); parts != nil; parts = t.joined() {
		w.handle(t, parts)
	}
}

// joined takes the next input of every branch; nil: a branch has none. The request fails when a branch
// has ended and another has a further input.
func (t *Task) joined() []*Delivery {
	if t.outputs.req.over() {
		return nil
	}
	missing, waiting := t.branches()
	switch {
	case missing == nil:
		return t.takeParts()
	case waiting != nil && missing.in.eos:
		d := waiting.in.parked[0]
		t.failAt(d, fmt.Errorf("%w: a branch of the join ended early: %s ended with %d deliveries, this edge has one more", ErrSequence, missing.edge.name, missing.in.payloads()))
	}
	return nil
}

// branches returns a flow without a waiting input, and one with a waiting input; nil: there is none.
func (t *Task) branches() (missing, waiting *flow) {
	for _, e := range t.stage.in {
		f := t.outputs.req.flow(e)
		switch {
		case len(f.in.parked) > 0:
			waiting = f
		case missing == nil || f.in.eos:
			missing = f
		}
	}
	return missing, waiting
}

func (t *Task) takeParts() []*Delivery {
	parts := make([]*Delivery, len(t.stage.in))
	for i, e := range t.stage.in {
		in := &t.outputs.req.flow(e).in
		parts[i] = in.parked[0]
		in.parked[0] = nil
		in.parked = in.parked[1:]
	}
	return parts
}

// payloads is the number of payloads of the stream so far, without a bare end.
func (in *inflow) payloads() uint64 {
	if in.bareEnd {
		return in.expect - 1
	}
	return in.expect
}

// passToActor passes a delivery to the program's actor.
func (w *worker) passToActor(t *Task, d *Delivery) {
	if err := d.openPayload(); err != nil {
		t.failAt(d, err)
		d.reclaim()
		return
	}
	d.state.Store(stateHeld)
	t.hold(d)
	w.partsBuf[0] = d
	w.task, w.parts = t, w.partsBuf[:]
	w.handlerLock.lock(t.outputs.req.id, 0)
	defer w.handlerLock.unlock() // also when the actor panics
	w.actor.Pass(d)
	w.task, w.parts = nil, nil
}
