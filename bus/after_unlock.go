package bus

import (
	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// AfterUnlock collects the work that a function defers until its caller has released its locks.
// Under a lock of the bus a delivery is only numbered and put in order, at an actor, a queue or
// the sender of a connection. A step that can end a request, call a handler or wait is noted in
// the AfterUnlock, and Run does it. The zero value is empty. It is for one goroutine.
type AfterUnlock struct {
	actor actors.Run    // of a worker that runs no user code
	work  *deferredWork // nil: there is no other work
}

// deferredWork is the rarer work. Its fields are in the order in which run does them.
type deferredWork struct {
	failures   []failure
	finished   []*Delivery // that no RemoteSink took
	dropped    []*Delivery // not handled, and their credit has no further use
	credits    []credit
	blocked    []*flow    // see flow.unblock
	endedSinks []*Request // whose sinks may have to be told of the end
}

// failure is a request and the error with which it fails.
type failure struct {
	req *Request
	err error
}

// credit is an amount that a flow gets back.
type credit struct {
	flow   *flow
	amount uint64
}

// Run does the noted work. The caller holds no lock.
func (after *AfterUnlock) Run() {
	lockorder.AssertNone("deferred work is done")
	if r := after.work; r != nil {
		after.work = nil
		r.run()
	}
	run := after.actor
	after.actor = actors.Run{}
	run.RunInline()
}

func (r *deferredWork) run() {
	for _, f := range r.failures { // first: a delivery that is finished afterwards does not count as handled
		f.req.end(Failed, f.err)
	}
	for _, d := range r.finished {
		_ = d.Finish(nil) // only the bus holds it
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
	if after.actor.Needed() {
		run.Start()
		return
	}
	after.actor = run
}

// Fail notes that a request fails. The request does not complete before Run.
func (after *AfterUnlock) Fail(r *Request, err error) {
	r.pendingErr.CompareAndSwap(nil, &err)
	more := after.ensureWork()
	more.failures = append(more.failures, failure{r, err})
}

// finish notes held deliveries, which are finished unhandled.
func (after *AfterUnlock) finish(ds ...*Delivery) {
	more := after.ensureWork()
	more.finished = append(more.finished, ds...)
}

// drop notes a delivery that its request no longer needs.
func (after *AfterUnlock) drop(d *Delivery) {
	more := after.ensureWork()
	more.dropped = append(more.dropped, d)
}

// giveCredit notes credit that a flow gets back.
func (after *AfterUnlock) giveCredit(f *flow, amount uint64) {
	more := after.ensureWork()
	more.credits = append(more.credits, credit{f, amount})
}

// unblock notes a flow whose queue waits for a slot, or whose request has ended: see flow.unblock.
func (after *AfterUnlock) unblock(f *flow) {
	more := after.ensureWork()
	more.blocked = append(more.blocked, f)
}

// endSink notes that the sink of a request may have to be told of the end.
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
