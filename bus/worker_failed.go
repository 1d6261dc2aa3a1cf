package bus

import (
	"fmt"
	"log/slog"
	"slices"

	"github.com/omnibus-runtime/omnibus/actors"
)

// Failed implements actors.Receiver: a handler panicked. It runs on the
// supervisor's goroutine while the worker stands still, and decides what
// becomes of the deliveries in hand; Restarted, on the worker's goroutine,
// carries it out.
func (w *worker) Failed(_ any, cause *actors.Panic) {
	t, parts := w.task, w.parts
	w.task, w.parts = nil, nil
	w.panics.Add(1)
	w.log.Error("handler panicked", slog.Any("panic", cause.Value), slog.String("stack", string(cause.Stack)))
	err := fmt.Errorf("%w: %w", ErrPanic, cause)
	switch {
	case w.stage.spec.Props != nil:
		w.onRestarted = func() { w.failActor(err) }
	case t != nil: // of a batching stage: in End
		w.onRestarted = func() { w.retryTask(t, parts, err) }
	case w.stage.spec.Batch != nil:
		w.onRestarted = func() { w.retryBatch(parts, err) }
	}
}

// Restarted implements actors.Receiver.
func (w *worker) Restarted() {
	if again := w.onRestarted; again != nil {
		w.onRestarted = nil
		again()
	}
}

// retryTask handles again what failed, if the stage allows it, or fails the
// request. Other requests are not touched.
func (w *worker) retryTask(t *Task, parts []*Delivery, err error) {
	spec := &w.stage.spec
	switch {
	case t.outputs.req.over():
	case spec.Replay && !t.everKept && t.attempt < spec.Attempts:
		w.replay(t, parts)
		return
	case spec.State == StateNone && inHand(parts) && t.outputIsOwn() && parts[0].retry(spec.Attempts):
		t.rewindOutput(false)
		for _, d := range parts {
			d.awaitUnread()
		}
		w.handle(t, parts)
		w.join(t)
		w.tryEndTask(t)
		return
	case len(parts) > 0:
		t.failAt(parts[0], err)
	default:
		t.Fail(fmt.Errorf("end of stream: %w", err))
	}
	for _, d := range parts {
		w.finish(t, d)
	}
	w.tryEndTask(t)
}

// inHand reports whether the worker still has all parts: one that was kept may
// be somebody else's by now.
func inHand(parts []*Delivery) bool {
	return len(parts) > 0 && !slices.ContainsFunc(parts, func(d *Delivery) bool { return d.state.Load() != stateSent })
}

// retry counts one more attempt at a delivery, unless it has had all of them
// or has left the handler's hands. What it was opened as is closed: the attempt that
// failed may have been done with it.
func (d *Delivery) retry(attempts int) bool {
	if d.tries >= attempts || d.kept || d.state.Load() == stateFinished {
		return false
	}
	d.awaitUnread()
	d.tries++
	d.Attempt++
	return true
}

// replay runs the request again at this stage, from its first input: what was
// handled, what failed, and what an earlier replay had not come to.
func (w *worker) replay(t *Task, parts []*Delivery) {
	for _, d := range parts {
		if d.state.Load() == stateSent {
			d.awaitUnread()
			t.retain(d)
		}
	}
	t.replaying = append(t.retained, t.replaying...)
	t.retained = nil
	t.attempt++
	t.State, t.ending = nil, false
	t.rewindOutput(true)
	for len(t.replaying) > 0 && !t.outputs.req.over() {
		d := t.replaying[0]
		t.replaying = t.replaying[1:]
		w.handleOne(t, d)
	}
	w.tryEndTask(t)
}

// retryBatch handles the deliveries of a failed batch one by one, so that the
// one at fault fails alone. Where the stage has state, every request in the
// batch has lost it.
func (w *worker) retryBatch(parts []*Delivery, err error) {
	if w.stage.spec.State == StateNone {
		rewound := make(map[*Task]bool)
		for _, d := range parts {
			if t := d.Task(); !rewound[t] {
				rewound[t] = true
				t.rewindOutput(false)
			}
		}
	}
	w.batchRetry = append(parts[:len(parts):len(parts)], w.batchRetry...)
	for len(w.batchRetry) > 0 {
		d := w.batchRetry[0]
		w.batchRetry = w.batchRetry[1:]
		if w.stage.spec.State == StateNone && d.retry(w.stage.spec.Attempts) {
			w.handleBatch([]*Delivery{d})
			continue
		}
		if d.kept { // not ours to finish
			d.Task().failAt(d, err)
			continue
		}
		_ = d.Finish(err) // one that the handler finished before says so: no matter
	}
	w.runRest()
}

// failActor deals with the deliveries that a user's actor held when it
// panicked: the new actor knows nothing of them.
func (w *worker) failActor(err error) {
	for _, t := range w.bus.tasksAt(w) {
		held := t.takeInHand()
		if w.stage.spec.State == StateRequest {
			t.Fail(err)
		} else if len(held) > 0 {
			t.rewindOutput(false)
		}
		for _, d := range held {
			if w.stage.spec.State == StateNone && d.retry(w.stage.spec.Attempts) {
				t.held.Add(-1)
				w.passToActor(t, d)
				continue
			}
			_ = d.Finish(err) // one finished a moment ago says so: no matter
		}
	}
}

// Dropped implements actors.Receiver: the stage stopped with this message
// unhandled.
func (w *worker) Dropped(message any, _ actors.DropReason) {
	switch m := message.(type) {
	case *Delivery:
		m.reclaim()
	case *Task:
		// The bus is closing: the request is over, and what the task still
		// holds is given back here, the worker being gone.
		w.resume(m)
	case taskGone:
		w.endStay(m.task)
	}
}
