package bus

import (
	"fmt"
	"log/slog"

	"github.com/omnibus-runtime/omnibus/actors"
)

// remoteWorker is the receiver of one actor of a remote stage: it checks the order of the
// inputs, and gives them to a replica. It runs no user code.
type remoteWorker struct{ *worker }

// receiver is the receiver of the worker's actor.
func (w *worker) receiver() actors.Receiver {
	if w.stage.remote != nil {
		return remoteWorker{w}
	}
	return w
}

// Receive implements actors.Receiver.
func (w remoteWorker) Receive(message any) {
	switch m := message.(type) {
	case *Delivery:
		w.task = m.flow.consumer
		w.arrive(w.task, m)
	case *Task:
		w.task = m
		w.tryEndTask(m)
	case taskGone:
		w.endStay(m.task)
	}
	w.task = nil
}

func (w remoteWorker) arrive(t *Task, d *Delivery) {
	if !t.accept(d) {
		return
	}
	joins := w.stage.spec.joins()
	switch {
	case d.Bare():
		d.reclaim()
	case joins:
		w.park(t, d)
	default:
		w.giveWork(t, d)
	}
	if joins {
		for parts := t.joined(); parts != nil; parts = t.joined() {
			w.giveWork(t, parts...)
		}
	}
	w.tryEndTask(t)
}

// giveWork gives one delivery, or one of each branch, to a replica, after opening and exposing the payloads.
func (w remoteWorker) giveWork(t *Task, parts ...*Delivery) {
	err := openAll(parts)
	for i := 0; i < len(parts) && err == nil; i++ {
		if err = parts[i].expose(); err != nil {
			err = fmt.Errorf("payload of %d bytes: %w", parts[i].Size(), err)
		}
	}
	if err == nil {
		w.stage.remote.giveWork(t, parts...)
		return
	}
	t.failAt(parts[0], err)
	for _, d := range parts {
		d.reclaim()
	}
}

// tryEndTask ends the task when its inputs and the replicas have ended, or its request is over.
func (w remoteWorker) tryEndTask(t *Task) {
	remote := w.stage.remote
	switch {
	case t.stayEnded:
	case t.outputs.req.over():
		t.discardInput()
		if !t.endAnnounced {
			t.endAnnounced = true
			remote.closeTask(t)
		}
		w.postTaskGone(t)
	case !t.ending && t.inputEnded():
		ended, err := remote.endTask(t)
		if !ended {
			return
		}
		t.answered.Store(true)
		if t.held.Load() > 0 {
			return // unhold then wakes the worker: it reads held first, and answered second
		}
		t.ending = true
		remote.closeTask(t)
		if err != nil {
			t.failAtEnd(err)
		}
		w.closeTask(t)
	}
}

// Failed implements actors.Receiver: the bus has a fault, with which the request fails.
func (w remoteWorker) Failed(_ any, cause *actors.Panic) {
	w.panics.Add(1)
	w.log.Error("the bus panicked", slog.Any("panic", cause.Value), slog.String("stack", string(cause.Stack)))
	if t := w.task; t != nil {
		t.Fail(fmt.Errorf("%w: %w", ErrPanic, cause))
	}
}

// Dropped implements actors.Receiver.
func (w remoteWorker) Dropped(message any, reason actors.DropReason) {
	if t, ok := message.(*Task); ok {
		w.tryEndTask(t) // the bus is closing: the request is over
		return
	}
	w.worker.Dropped(message, reason)
}
