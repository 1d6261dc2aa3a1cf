package bus

import "slices"

// A batch, or an actor, holds several deliveries of a request at once. This is
// what a task knows of them.

// takeIn notes a delivery that a batch or an actor now holds.
func (t *Task) takeIn(d *Delivery) {
	t.heldMu.Lock()
	defer t.heldMu.Unlock()
	t.inHand = append(t.inHand, d)
	t.nameOnly()
}

// nameOnly, with heldMu held, has what an actor emits name the delivery that it
// has of the request, if there is but one: the actor does not say for which of
// several it emits, unless it does so through a Kept.
func (t *Task) nameOnly() {
	if t.stage.spec.Props == nil || !t.outlet.req.bus.node {
		return
	}
	only := uint32(0)
	if len(t.inHand) == 1 {
		only = t.inHand[0].fed.number()
	}
	t.handling.Store(only)
}

// letGo ends the work on a delivery that a batch or an actor has finished.
func (t *Task) letGo(d *Delivery) {
	if t.stage.spec.State == StateNone {
		t.markOutput() // what was sent until now is not sent again in a retry
	}
	t.heldMu.Lock()
	if i := slices.Index(t.inHand, d); i >= 0 {
		t.inHand = slices.Delete(t.inHand, i, i+1)
	}
	t.nameOnly()
	wait := t.outlet.req.bus.node && t.clogged()
	if wait {
		t.behind = append(t.behind, d)
	}
	t.heldMu.Unlock()
	switch {
	case !wait:
		d.giveBack()
		t.unhold()
	case !t.clogged() || t.outlet.req.over():
		t.wake() // the queue was emptied a moment ago: nobody else may look again
	}
}

// giveBehind gives back what was finished while outputs were queued, once they
// are out: the host takes an input that is finished for one whose outputs it has.
func (t *Task) giveBehind() {
	if t.clogged() && !t.outlet.req.over() {
		return
	}
	t.heldMu.Lock()
	behind := t.behind
	t.behind = nil
	t.heldMu.Unlock()
	for _, d := range behind {
		d.giveBack()
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
	t.nameOnly()
	return ds
}
