package bus

import (
	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// AfterUnlock is what a function leaves to its caller to do once locks are let go. Under a lock
// of the bus a delivery is numbered and put in order, at an actor, a queue or the sender of a
// connection. Nothing that can end a request, call a handler or wait runs there: it is noted
// in the AfterUnlock, and Do does it. The zero value has nothing to do. It is for one goroutine.
type AfterUnlock struct {
	actor actors.Run    // of a worker that runs no user's code
	work  *deferredWork // nil: nothing but the run is to be done
}

// deferredWork is what few emissions leave behind, in the order in which it is done.
type deferredWork struct {
	failures   []failure
	finished   []*Delivery // that no carrier took
	dropped    []*Delivery // unseen, whose credit is of no use
	credits    []credit
	blocked    []*flow    // see flow.unblock
	endedSinks []*Request // whose sinks may be told that they are over
}

// failure is why a request fails.
type failure struct {
	req *Request
	err error
}

// credit goes back to a flow.
type credit struct {
	flow   *flow
	amount uint64
}

// Run does what was noted. The caller holds no lock.
func (after *AfterUnlock) Run() {
	lockorder.AssertNone("what was left is done")
	if r := after.work; r != nil {
		after.work = nil
		r.run()
	}
	run := after.actor
	after.actor = actors.Run{}
	run.Lend()
}

func (r *deferredWork) run() {
	for _, f := range r.failures { // first: what is finished behind it is not taken for handled
		f.req.end(Failed, f.err)
	}
	for _, d := range r.finished {
		_ = d.Finish(nil) // held by the bus alone
	}
	for _, d := range r.dropped {
		d.discard()
	}
	for _, c := range r.credits {
		c.flow.giveCredit(c.amount)
	}
	for _, f := range r.blocked {
		f.unblock()
	}
	for _, req := range r.endedSinks {
		req.endSink()
	}
}

// runActor notes that the caller's goroutine may run the actor. Of several actors it runs one, and
// workers run the others at the same time.
func (after *AfterUnlock) runActor(run actors.Run) {
	if after.actor.Due() {
		run.Start()
		return
	}
	after.actor = run
}

// Fail notes that a request fails. The request does not complete meanwhile.
func (after *AfterUnlock) Fail(r *Request, err error) {
	r.pendingErr.CompareAndSwap(nil, &err)
	more := after.ensureWork()
	more.failures = append(more.failures, failure{r, err})
}

// finish notes a delivery that is held, and finished without having been handled.
func (after *AfterUnlock) finish(ds ...*Delivery) {
	more := after.ensureWork()
	more.finished = append(more.finished, ds...)
}

// drop notes a delivery whose request needs it no more.
func (after *AfterUnlock) drop(d *Delivery) {
	more := after.ensureWork()
	more.dropped = append(more.dropped, d)
}

// giveCredit notes that credit goes back.
func (after *AfterUnlock) giveCredit(f *flow, amount uint64) {
	more := after.ensureWork()
	more.credits = append(more.credits, credit{f, amount})
}

// unblock notes a flow whose queue waits for a slot.
func (after *AfterUnlock) unblock(f *flow) {
	more := after.ensureWork()
	more.blocked = append(more.blocked, f)
}

// endSink notes that the sink of a request may be told of its end.
func (after *AfterUnlock) endSink(r *Request) {
	more := after.ensureWork()
	more.endedSinks = append(more.endedSinks, r)
}

func (after *AfterUnlock) ensureWork() *deferredWork {
	if after.work == nil {
		after.work = new(deferredWork)
	}
	return after.work
}
