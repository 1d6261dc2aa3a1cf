package bus

import "slices"

// A batch, or an actor, holds several deliveries of a request at once. This is
// what a task knows of them.

// addInHand notes a delivery that a batch or an actor now holds.
func (t *Task) addInHand(d *Delivery) {
	t.heldMu.Lock()
	defer t.heldMu.Unlock()
	t.inHand = append(t.inHand, d)
	t.setHandling()
}

// setHandling, with heldMu held, has what an actor emits name the delivery that it
// has of the request, if there is but one: the actor does not say for which of
// several it emits, unless it does so through a Kept.
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
		t.markOutput() // what was sent until now is not sent again in a retry
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
		t.wake() // the queue was emptied a moment ago: nobody else may look again
	}
}

// releaseFinished gives back what was finished while outputs were queued, once they
// are out: the host takes an input that is finished for one whose outputs it has.
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

// takeInHand gives the deliveries that a batch or an actor holds, and forgets
// them.
func (t *Task) takeInHand() []*Delivery {
	t.heldMu.Lock()
	defer t.heldMu.Unlock()
	ds := t.inHand
	t.inHand = nil
	t.setHandling()
	return ds
}
