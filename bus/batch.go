package bus

import "github.com/omnibus-runtime/omnibus/internal/lockorder"

// gather adds a delivery to the batch.
func (w *worker) gather(t *Task, d *Delivery) {
	d.state.Store(stateHeld)
	t.hold(d)
	w.batcher.Add(d)
}

// ungather finishes the gathered deliveries of an ended request, which need not wait for the rest of
// the batch.
func (w *worker) ungather(t *Task) {
	if w.batcher == nil {
		return
	}
	for _, d := range w.batcher.Take(func(d *Delivery) bool { return d.Task() == t }) {
		_ = d.Finish(nil) // only the batch holds it
	}
}

// runBatch handles a full or overdue batch.
func (w *worker) runBatch(batch []*Delivery) {
	w.batchRest = batch
	w.runRest()
}

// runRest handles the rest of a batch, in rounds.
func (w *worker) runRest() {
	for len(w.batchRest) > 0 {
		var batch []*Delivery
		batch, w.batchRest = w.nextRound(w.batchRest)
		w.handleBatch(batch)
	}
}

// nextRound splits a batch into the deliveries for the handler's next call and
// the rest. The next call gets all of them, unless an emission has to name the
// delivery for which it is made: then it gets the oldest one of each request.
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
				_ = d.Finish(err) // an error means that the handler has finished it
			}
		}
	}
	w.parts = nil
}

// callBatch calls the handler. With oneEach, emissions for a request name the
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
	w.handlerLock.lock(batch[0].flow.req.id, 0) // stands for the whole batch
	defer w.handlerLock.unlock()
	return w.stage.spec.Batch(batch)
}
