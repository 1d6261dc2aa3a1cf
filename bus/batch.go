package bus

import "github.com/omnibus-runtime/omnibus/internal/lockorder"

// gather adds a delivery to the batch.
func (w *worker) gather(t *Task, d *Delivery) {
	d.state.Store(stateHeld)
	t.hold(d)
	w.batcher.Add(d)
}

// ungather gives back what waits in the batch of a request that is over: it need not
// wait for the others.
func (w *worker) ungather(t *Task) {
	if w.batcher == nil {
		return
	}
	for _, d := range w.batcher.Take(func(d *Delivery) bool { return d.Task() == t }) {
		_ = d.Finish(nil) // the batch's alone
	}
}

// runBatch handles a full or overdue batch.
func (w *worker) runBatch(batch []*Delivery) {
	w.batchRest = batch
	w.runRest()
}

// runRest handles what is left of a batch, in rounds.
func (w *worker) runRest() {
	for len(w.batchRest) > 0 {
		var batch []*Delivery
		batch, w.batchRest = w.nextRound(w.batchRest)
		w.handleBatch(batch)
	}
}

// nextRound gives what the handler gets now, and what it gets later. That is
// everything at once, unless an emission has to name the delivery that it is
// made for: then it is one delivery of each request, the oldest.
func (w *worker) nextRound(batch []*Delivery) (now, later []*Delivery) {
	if !w.stage.oneEach {
		return batch, nil
	}
	w.round++
	later = batch[:0]
	for _, d := range batch {
		if t := d.Task(); t.round == w.round {
			later = append(later, d)
		} else {
			t.round = w.round
			now = append(now, d)
		}
	}
	return now, later
}

func (w *worker) handleBatch(batch []*Delivery) {
	w.parts = batch
	live := batch[:0]
	for _, d := range batch {
		switch err := d.openPayload(); {
		case d.flow.req.over():
			_ = d.Finish(nil)
		case err != nil:
			_ = d.Finish(err)
		default:
			if w.stage.spec.State == StateNone {
				d.Task().markOutput()
			}
			live = append(live, d)
		}
	}
	w.parts = live
	if len(live) > 0 {
		err := w.callBatch(live)
		for _, d := range live {
			if !d.kept {
				d.handled = true
				_ = d.Finish(err) // those finished by the handler say so: no matter
			}
		}
	}
	w.parts = nil
}

// callBatch calls the handler. What it emits for a request meanwhile names the
// request's delivery.
func (w *worker) callBatch(batch []*Delivery) error {
	lockorder.AssertNone("a handler is called")
	if w.stage.oneEach {
		for _, d := range batch {
			d.Task().handling.Store(d.fed.hostID())
		}
		defer func() {
			for _, d := range batch {
				d.Task().handling.Store(0)
			}
		}()
	}
	w.handlerLock.lock(batch[0].flow.req.id, 0) // of all of them
	defer w.handlerLock.unlock()
	return w.stage.spec.Batch(batch)
}
