package bus

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// slot is the right of one request to be open at a stage, and the actor that serves it there.
// The slots of a batching stage, or of a user's actor, share one actor for each replica;
// elsewhere each slot has its own.
type slot struct {
	worker *worker
	above  bool // made to break a circle
}

// stay says how a request stands at a stage.
type stay = int32

const (
	stayNone    stay = iota // nothing was sent to the stage yet
	stayWaiting             // for a slot
	stayHolding             // a slot
	stayLeft                // the slot is given back, or none was ever wanted: the request takes none any more
)

// admission lets requests in at the stages of a bus. A request takes a slot at a stage for its first
// delivery there, or for an end of which the stage is to be told. It may wait for slots of several
// stages at a time. A free slot goes to the request that was submitted first; several clients take turns.
//
// A request holds slots while it waits, so waits may close a circle. Then the oldest wait of the
// circle is granted above the bound of its stage. No circle can be where no request waits for a stage
// before one whose slot it holds; in a chain none does.
type admission struct {
	unbounded bool // every wait is granted: the host of this node has let the request in
	stages    []*stage
	served    atomic.Uint64 // the highest order of a request that has got a slot

	mu       lockorder.Mutex[lockorder.Admission] // guards what follows, and what says so of stages, tasks and requests
	backward int                                  // requests that wait for a stage before one whose slot they hold
}

// granted is a list of tasks that have got slots, linked by Task.granted. What follows from a grant
// is done by begin, without the lock.
type granted struct{ first, last *Task }

// wantSlot has the request take a slot at the stage of t, or wait for one, unless it has or had one,
// or is over.
func (r *Request) wantSlot(t *Task) {
	if t == nil {
		return
	}
	var g granted
	a := &r.bus.admission
	a.mu.Lock()
	if t.stay.Load() == stayNone && !r.over() {
		if a.belowBound(t.stage) {
			a.grant(t, &g)
		} else {
			a.enqueue(t)
		}
		a.grantSlots(t.stage, &g)
	}
	a.mu.Unlock()
	g.beginStays()
}

// releaseSlot ends the request's stay at a stage.
func (r *Request) releaseSlot(t *Task) {
	var g granted
	a := &r.bus.admission
	a.mu.Lock()
	a.release(t)
	a.grantSlots(t.stage, &g)
	a.mu.Unlock()
	r.releaseRef()
	g.beginStays()
}

// skip has a request take no slot at a stage, also where it waits for one, for an input that was given up.
// It reports false when the request has a slot.
func (a *admission) skip(t *Task) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch t.stay.Load() {
	case stayNone:
		t.stay.Store(stayLeft)
	case stayWaiting:
		a.dequeue(t, stayLeft)
		a.countBackward(t.outputs.req)
	default:
		return false
	}
	return true
}

// withdraw takes back the waits of a request that is over.
func (a *admission) withdraw(r *Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(r.waiting) > 0 {
		a.dequeue(r.waiting[0], stayLeft)
	}
	a.countBackward(r)
}

// belowBound, with mu held, reports whether a stage may take one request more.
func (a *admission) belowBound(st *stage) bool { return a.unbounded || len(st.holders) < st.bound() }

// grantSlots, with mu held, is called after each change at a stage: it grants free slots, and breaks
// circles. A circle may close when a wait begins, when a request gets one slot while it waits for
// another, and when a slot above the bound comes back, which is granted to no wait.
func (a *admission) grantSlots(st *stage, g *granted) {
	for len(st.waits) > 0 && a.belowBound(st) {
		if t := st.waits[0]; t.outputs.req.over() { // and is about to withdraw
			a.dequeue(t, stayLeft)
		} else {
			a.grant(t, g)
		}
	}
	for a.backward > 0 {
		t := a.oldestOnCycle()
		if t == nil {
			return
		}
		t.stage.admittedAbove++
		a.grant(t, g)
	}
}

// enqueue, with mu held, puts a task in line.
func (a *admission) enqueue(t *Task) {
	st, r := t.stage, t.outputs.req
	st.waits = slices.Insert(st.waits, st.position(r), t)
	r.waiting = append(r.waiting, t)
	t.stay.Store(stayWaiting)
	a.countBackward(r)
}

// dequeue, with mu held, takes a task out of its line.
func (a *admission) dequeue(t *Task, to stay) {
	st, r := t.stage, t.outputs.req
	at := st.position(r)
	st.waits = slices.Delete(st.waits, at, at+1)
	r.waiting = slices.DeleteFunc(r.waiting, func(w *Task) bool { return w == t })
	t.stay.Store(to)
}

// position, with the lock of the admission held, is the place of a request among the waits of a stage.
func (st *stage) position(r *Request) int {
	at, _ := slices.BinarySearchFunc(st.waits, r, func(w *Task, r *Request) int { return w.outputs.req.compare(r) })
	return at
}

// compare orders requests as they get slots.
func (r *Request) compare(o *Request) int {
	return cmp.Or(cmp.Compare(r.order, o.order), cmp.Compare(r.key, o.key))
}

// grant, with mu held, gives a task a slot. Where none is free, begin makes one.
func (a *admission) grant(t *Task, g *granted) {
	st, r := t.stage, t.outputs.req
	if t.stay.Load() == stayWaiting {
		a.dequeue(t, stayHolding)
	}
	t.stay.Store(stayHolding)
	idle := st.idleSlots(len(st.holders) >= st.bound())
	if n := len(*idle); n > 0 {
		t.useSlot((*idle)[n-1])
		*idle = (*idle)[:n-1]
	}
	t.heldAt = len(st.holders)
	st.holders = append(st.holders, t)
	r.refs.Add(1)
	if r.order > a.served.Load() {
		a.served.Store(r.order)
	}
	a.countBackward(r)
	if g.first == nil {
		g.first = t
	} else {
		g.last.granted = t
	}
	g.last = t
}

// release, with mu held, takes the slot of a task back.
func (a *admission) release(t *Task) {
	st := t.stage
	t.stay.Store(stayLeft) // before there is no slot: see Task.begin
	if s := t.slot.Swap(nil); s != nil {
		idle := st.idleSlots(s.above)
		*idle = append(*idle, s)
	}
	last := len(st.holders) - 1
	st.holders[t.heldAt] = st.holders[last]
	st.holders[t.heldAt].heldAt = t.heldAt
	st.holders[last] = nil
	st.holders = st.holders[:last]
	a.countBackward(t.outputs.req)
}

// idleSlots, with the lock of the admission held, are the slots that no request has: those above the bound
// stay apart, so that requests spread over the replicas.
func (st *stage) idleSlots(above bool) *[]*slot {
	if above {
		return &st.spare
	}
	return &st.free
}

// countBackward, with mu held, counts a request in backward, or out, after a change of its slots and waits.
func (a *admission) countBackward(r *Request) {
	was := r.backward
	r.backward = slices.ContainsFunc(r.waiting, func(w *Task) bool {
		return r.holdsBehind(w.stage)
	})
	switch {
	case r.backward && !was:
		a.backward++
	case was && !r.backward:
		a.backward--
	}
}

// holdsBehind reports whether the request holds a slot of a stage behind st.
func (r *Request) holdsBehind(st *stage) bool {
	for i := st.index + 1; i < len(r.tasks); i++ {
		if r.tasks[i].stay.Load() == stayHolding {
			return true
		}
	}
	return false
}

// oldestOnCycle, with mu held, gives the oldest wait on a circle of waits whose request holds a slot; nil: there
// is no circle.
func (a *admission) oldestOnCycle() *Task {
	for _, st := range a.stages {
		st.stuck = len(st.waits) > 0
	}
	// A stage is stuck while each request that holds a slot of it waits for a stuck stage.
	a.narrow(func(st *stage) bool {
		return !slices.ContainsFunc(st.holders, func(h *Task) bool { return !h.outputs.req.waitsStuck() })
	})
	// It is on a circle, and not behind one, while a request waits for it that holds a slot on a circle.
	a.narrow(func(st *stage) bool { return st.oldestStuck() != nil })
	var oldest *Task
	for _, st := range a.stages {
		if t := st.oldestStuck(); st.stuck && (oldest == nil || t.outputs.req.compare(oldest.outputs.req) < 0) {
			oldest = t
		}
	}
	return oldest
}

// narrow, with mu held, takes stages that do not keep a condition out of those that are stuck, until all
// that are left do.
func (a *admission) narrow(keeps func(*stage) bool) {
	for again := true; again; {
		again = false
		for _, st := range a.stages {
			if st.stuck && !keeps(st) {
				st.stuck, again = false, true
			}
		}
	}
}

// waitsStuck reports whether the request waits for a stuck stage.
func (r *Request) waitsStuck() bool {
	return !r.over() && slices.ContainsFunc(r.waiting, func(w *Task) bool { return w.stage.stuck })
}

// oldestStuck is the oldest wait at a stage whose request holds a slot of a stuck stage.
func (st *stage) oldestStuck() *Task {
	i := slices.IndexFunc(st.waits, func(w *Task) bool { return w.outputs.req.holdsStuck() })
	if i < 0 {
		return nil
	}
	return st.waits[i]
}

// holdsStuck reports whether the request holds a slot of a stuck stage.
func (r *Request) holdsStuck() bool {
	if r.over() {
		return false
	}
	for i := range r.tasks {
		if t := &r.tasks[i]; t.stage.stuck && t.stay.Load() == stayHolding {
			return true
		}
	}
	return false
}

// beginStays lets in what waits to be sent to the tasks. The caller holds no lock.
func (g *granted) beginStays() {
	for t := g.first; t != nil; {
		next := t.granted // a task that has begun may leave
		t.granted = nil
		if t.slot.Load() == nil && t.stay.Load() == stayHolding {
			go t.beginStayAbove() // the actor is made by the supervisor, whose goroutine this may be
		} else {
			t.beginStay()
		}
		t = next
	}
}

// beginStay lets in what waits to be sent to a task that has got a slot.
func (t *Task) beginStay() {
	r := t.outputs.req
	for _, e := range t.stage.in {
		f := r.flow(e)
		f.sendPendingEnd()
		f.resumeProducer()
	}
	if r.over() { // it ended meanwhile: the worker cleans up
		t.wake()
	}
}

// beginStayAbove makes a slot for a task that was granted one above the bound of its stage.
func (t *Task) beginStayAbove() {
	r := t.outputs.req
	s, err := t.stage.makeSlot(r.bus)
	if err != nil {
		t.Fail(fmt.Errorf("one request more: %w", err))
		r.releaseSlot(t)
		return
	}
	t.useSlot(s)
	t.beginStay()
}

// useSlot has the task be served by the actor of a slot.
func (t *Task) useSlot(s *slot) {
	t.outputs.producer = s.worker.producer
	if t.stage.spec.Props == nil { // an actor may emit when it handles nothing
		t.Emitter.handlerLock = s.worker.handlerLock
	}
	t.slot.Store(s)
}
