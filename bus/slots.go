package bus

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// slot is the right of one request to be open at a stage, and the actor that serves it there.
// The slots of a batching stage, or of a program's actor, share one actor per replica; at other
// stages each slot has its own.
type slot struct {
	worker *worker
	above  bool // made above the bound, to break a cycle
}

// stay is the state of a request at a stage.
type stay = int32

const (
	stayNone    stay = iota // no delivery was sent to the stage yet
	stayWaiting             // for a slot
	stayHolding             // a slot
	stayLeft                // the slot is returned, or was never needed: the request gets none any more
)

// admission grants the slots of the stages of a bus to requests. A request takes a slot at a stage for its
// first delivery there, or for an end that the stage has to handle. It may wait for slots of several
// stages at a time. A free slot goes to the request that was submitted first; several clients alternate.
//
// A request holds slots while it waits, so waits may form a cycle. Then the oldest wait of the cycle is
// granted above the bound of its stage. A cycle needs a request that waits for a stage before one whose
// slot it holds; in a chain of stages there is none.
type admission struct {
	unbounded bool // every wait is granted: the host of this node has admitted the request
	stages    []*stage
	served    atomic.Uint64 // the highest order of the requests that have got a slot

	mu       lockorder.Mutex[lockorder.Admission] // guards the fields below, and those of stages, tasks and requests that name it
	backward int                                  // requests that wait for a stage before one whose slot they hold
}

// granted is a list of tasks that have got slots, linked by Task.granted. beginStays does the work that
// follows from a grant, without the lock.
type granted struct{ first, last *Task }

// wantSlot takes a slot for the request at the stage of t, or lets it wait for one, unless it has or had
// one, or is over.
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

// skip ends the stay of a request at a stage without a slot, also if it waits for one because of an input that
// was canceled. It reports false when the request has a slot.
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

// withdraw ends the waits of a request that is over.
func (a *admission) withdraw(r *Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(r.waiting) > 0 {
		a.dequeue(r.waiting[0], stayLeft)
	}
	a.countBackward(r)
}

// belowBound, with mu held, reports whether a stage may take another request.
func (a *admission) belowBound(st *stage) bool { return a.unbounded || len(st.holders) < st.bound() }

// grantSlots, with mu held, is called after each change at a stage: it grants free slots, and breaks
// cycles. A cycle may form when a wait begins, when a request gets one slot while it waits for
// another, and when a slot above the bound is returned, which no wait gets.
func (a *admission) grantSlots(st *stage, g *granted) {
	for len(st.waits) > 0 && a.belowBound(st) {
		if t := st.waits[0]; t.outputs.req.over() { // withdraw follows
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

// enqueue, with mu held, adds a task to the waits of its stage.
func (a *admission) enqueue(t *Task) {
	st, r := t.stage, t.outputs.req
	st.waits = slices.Insert(st.waits, st.position(r), t)
	r.waiting = append(r.waiting, t)
	t.stay.Store(stayWaiting)
	a.countBackward(r)
}

// dequeue, with mu held, removes a task from the waits of its stage.
func (a *admission) dequeue(t *Task, to stay) {
	st, r := t.stage, t.outputs.req
	at := st.position(r)
	st.waits = slices.Delete(st.waits, at, at+1)
	r.waiting = slices.DeleteFunc(r.waiting, func(w *Task) bool { return w == t })
	t.stay.Store(to)
}

// position, with the lock of the admission held, is the index of a request among the waits of the stage.
func (st *stage) position(r *Request) int {
	at, _ := slices.BinarySearchFunc(st.waits, r, func(w *Task, r *Request) int { return w.outputs.req.compare(r) })
	return at
}

// compare orders requests by their claim to slots.
func (r *Request) compare(o *Request) int {
	return cmp.Or(cmp.Compare(r.order, o.order), cmp.Compare(r.key, o.key))
}

// grant, with mu held, gives a task a slot. If none is idle, beginStays makes one.
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

// release, with mu held, returns the slot of a task.
func (a *admission) release(t *Task) {
	st := t.stage
	t.stay.Store(stayLeft) // before the slot is removed: see granted.beginStays
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

// idleSlots, with the lock of the admission held, are the slots without a request. Those above the bound
// are kept apart, so that requests spread over the replicas.
func (st *stage) idleSlots(above bool) *[]*slot {
	if above {
		return &st.spare
	}
	return &st.free
}

// countBackward, with mu held, updates backward after a change of the request's slots and waits.
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

// oldestOnCycle, with mu held, returns the oldest wait on a cycle of waits whose request holds a slot on it; nil:
// there is no cycle.
func (a *admission) oldestOnCycle() *Task {
	for _, st := range a.stages {
		st.stuck = len(st.waits) > 0
	}
	// A stage is stuck while each request with a slot of it waits for a stuck stage.
	a.narrow(func(st *stage) bool {
		return !slices.ContainsFunc(st.holders, func(h *Task) bool { return !h.outputs.req.waitsStuck() })
	})
	// It is on a cycle, and not only blocked by one, if a request with a slot on a cycle waits for it.
	a.narrow(func(st *stage) bool { return st.oldestStuck() != nil })
	var oldest *Task
	for _, st := range a.stages {
		if t := st.oldestStuck(); st.stuck && (oldest == nil || t.outputs.req.compare(oldest.outputs.req) < 0) {
			oldest = t
		}
	}
	return oldest
}

// narrow, with mu held, removes stages that do not meet a condition from the stuck ones, until all that are left meet it.
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

// oldestStuck is the oldest wait at the stage whose request holds a slot of a stuck stage; nil: there is none.
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

// beginStays resumes the producers of the tasks. The caller holds no lock.
func (g *granted) beginStays() {
	for t := g.first; t != nil; {
		next := t.granted // beginStay may end with the task's stay
		t.granted = nil
		if t.slot.Load() == nil && t.stay.Load() == stayHolding {
			go t.beginStayAbove() // this may be the supervisor's goroutine, and the supervisor makes the actor
		} else {
			t.beginStay()
		}
		t = next
	}
}

// beginStay resumes the producers of a task that has got a slot.
func (t *Task) beginStay() {
	r := t.outputs.req
	for _, e := range t.stage.in {
		f := r.flow(e)
		f.sendPendingEnd()
		f.resumeProducer()
	}
	if r.over() { // it has ended meanwhile: the worker cleans up
		t.wake()
	}
}

// beginStayAbove makes the slot of a task that was granted one above the bound of its stage.
func (t *Task) beginStayAbove() {
	r := t.outputs.req
	s, err := t.stage.makeSlot(r.bus)
	if err != nil {
		t.Fail(fmt.Errorf("slot above the bound: %w", err))
		r.releaseSlot(t)
		return
	}
	t.useSlot(s)
	t.beginStay()
}

// useSlot sets the actor that serves the task.
func (t *Task) useSlot(s *slot) {
	t.outputs.producer = s.worker.producer
	if t.stage.spec.Props == nil { // a program's actor may emit without handling a delivery
		t.Emitter.handlerLock = s.worker.handlerLock
	}
	t.slot.Store(s)
}
