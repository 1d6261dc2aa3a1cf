package bus

import (
	"fmt"
	"log/slog"
	"slices"

	"github.com/omnibus-runtime/omnibus/actors"
)

// Failed implements actors.Receiver: a handler panicked. It runs on the
// supervisor's goroutine while the worker is stopped, and decides how to go on
// with its deliveries; Restarted carries this out on the worker's goroutine.
func (w *worker) Failed(_ any, cause *actors.Panic) {
	t, parts := w.task, w.parts
	w.task, w.parts = nil, nil
	w.panics.Add(1)
	w.log.Error("handler panicked", slog.Any("panic", cause.Value), slog.String("stack", string(cause.Stack)))
	err := fmt.Errorf("%w: %w", ErrPanic, cause)
	switch {
	case w.stage.spec.Props != nil:
		w.onRestarted = func() { w.failActor(err) }
	case t != nil: // also in End of a batching stage
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

// retryTask handles the failed deliveries again, if the stage allows it, or fails
// the request. Other requests are not affected.
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

// inHand reports whether the worker still has all parts: a kept one may have
// another holder.
func inHand(parts []*Delivery) bool {
	return len(parts) > 0 && !slices.ContainsFunc(parts, func(d *Delivery) bool { return d.state.Load() != stateSent })
}

// retry counts one more attempt at a delivery. It reports false when there is none left, or
// the delivery was kept or finished. It closes the opened message: the next attempt opens
// its own.
func (d *Delivery) retry(attempts int) bool {
	if d.tries >= attempts || d.kept || d.state.Load() == stateFinished {
		return false
	}
	d.awaitUnread()
	d.tries++
	d.Attempt++
	return true
}

// replay runs the request again at this stage, from its first input: the handled
// input, the failed one, and the input that an earlier replay has not reached.
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

// retryBatch handles the deliveries of a failed batch one by one, so that only
// the faulty one fails. If the stage has state, every request in the batch has
// lost it and fails.
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
		if d.kept { // its holder finishes it
			d.Task().failAt(d, err)
			continue
		}
		_ = d.Finish(err) // an error means that the handler has finished it
	}
	w.runRest()
}

// failActor fails or repeats the deliveries that a program's actor held when it
// panicked: the new actor does not know them.
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
			_ = d.Finish(err) // an error means that it was finished meanwhile
		}
	}
}

// Dropped implements actors.Receiver: the stage has stopped without handling this message.
func (w *worker) Dropped(message any, _ actors.DropReason) {
	switch m := message.(type) {
	case *Delivery:
		m.reclaim()
	case *Task:
		// The bus is closing and the request is over: the stopped worker releases
		// the deliveries of the task here.
		w.resume(m)
	case taskGone:
		w.endStay(m.task)
	}
}
