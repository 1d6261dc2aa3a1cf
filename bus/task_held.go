package bus

import "slices"

// This file has the deliveries of a task that a batch, or an actor, holds.

// addInHand adds a delivery that a batch or an actor holds.
func (t *Task) addInHand(d *Delivery) {
	t.heldMu.Lock()
	defer t.heldMu.Unlock()
	t.inHand = append(t.inHand, d)
	t.setHandling()
}

// setHandling, with heldMu held, sets the delivery that an actor's emissions name:
// the one that it holds of the request, if it is the only one. For one of several
// deliveries an actor emits through a Kept.
func (t *Task) setHandling() {
	if t.stage.spec.Props == nil || !t.outputs.req.bus.node {
		return
	}
	only := uint32(0)
	if len(t.inHand) == 1 {
		only = t.inHand[0].fed.hostID()
	}
	t.handling.Store(only)
}

// releaseInHand ends the work on a delivery that a batch or an actor has finished.
func (t *Task) releaseInHand(d *Delivery) {
	if t.stage.spec.State == StateNone {
		t.markOutput() // a retry does not repeat the emissions so far
	}
	t.heldMu.Lock()
	if i := slices.Index(t.inHand, d); i >= 0 {
		t.inHand = slices.Delete(t.inHand, i, i+1)
	}
	t.setHandling()
	wait := t.outputs.req.bus.node && t.outputQueued()
	if wait {
		t.releaseAfterOutput = append(t.releaseAfterOutput, d)
	}
	t.heldMu.Unlock()
	switch {
	case !wait:
		d.release()
		t.unhold()
	case !t.outputQueued() || t.outputs.req.over():
		t.wake() // the queue became empty meanwhile: flush may have woken the worker before the delivery was added
	}
}

// releaseFinished releases deliveries that were finished while outputs were queued,
// once the queues are empty: for the host a finished input has sent all its outputs.
func (t *Task) releaseFinished() {
	if t.outputQueued() && !t.outputs.req.over() {
		return
	}
	t.heldMu.Lock()
	behind := t.releaseAfterOutput
	t.releaseAfterOutput = nil
	t.heldMu.Unlock()
	for _, d := range behind {
		d.release()
		t.unhold()
	}
}

// takeInHand returns and removes the deliveries that a batch or an actor holds.
func (t *Task) takeInHand() []*Delivery {
	t.heldMu.Lock()
	defer t.heldMu.Unlock()
	ds := t.inHand
	t.inHand = nil
	t.setHandling()
	return ds
}
