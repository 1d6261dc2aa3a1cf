package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/messages"
)

// Outcome is how a request ended.
type Outcome uint32

// Outcomes. A request is Running until it has exactly one of the others.
const (
	Running Outcome = iota
	Completed
	Failed
	Aborted
	PastDeadline
)

// String implements fmt.Stringer.
func (o Outcome) String() string {
	return [...]string{"running", "completed", "failed", "aborted", "past deadline"}[o]
}

// Request is one journey through the graph. Its methods are safe for
// concurrent use; Send and CloseSend keep the order in which they are called. A Send that
// still waits when CloseSend is called gets ErrAfterEnd.
type Request struct {
	id       messages.RequestID
	key      uint64       // in this bus; the same as id, unless the request lives elsewhere
	client   uint32       // that submitted it: see RequestOptions
	order    uint64       // in which requests get slots; of equal ones the lesser key comes first
	owner    RequestOwner // where it lives, when this process submitted it; nil: here
	sink     Sink         // takes the results; nil: they are received here
	bus      *Bus
	ctx      context.Context // what Submit was given
	deadline time.Time       // see RequestOptions; zero: none
	trace    messages.TraceContext
	traced   bool
	began    time.Time

	done       chan struct{} // closed when the request is over
	outcome    atomic.Uint32
	err        error                 // written before done is closed
	pendingErr atomic.Pointer[error] // with which it is about to fail: see AfterUnlock.Fail
	givenUp    atomic.Bool           // it does not complete: see EndsAtDeadline

	tasks   []Task // by stage
	flows   []flow // by edge
	inputs  outputs
	results results

	flushBatch atomic.Pointer[FlushBatch] // of the session that handles packets about the request; nil: none does

	openTasks atomic.Int32 // stages that have not ended it yet
	refs      atomic.Int32 // slots held, the caller's part, and its payloads: 0 means gone
	inHand    atomic.Int32 // payloads that the caller has room for in the store, and has not sent

	unread atomic.Pointer[error] // why results were given up that the caller had not received: ctx ended
	logged atomic.Bool           // the log says that requests wait for its place

	// Guarded by admission.mu.
	waiting  []*Task // for slots
	backward bool    // one of them is before one that has a slot

	mu      lockorder.Mutex[lockorder.Request] // guards what follows, and the one step from Running
	timer   *time.Timer                        // of the deadline
	unwatch func() bool                        // stops watching ctx, unless results depend on it: see watch
}

func newRequest(ctx context.Context, b *Bus, o RequestOptions) *Request {
	g := b.graph
	r := &Request{
		id: o.ID, key: b.nextKey(), client: o.Client, owner: o.Owner, sink: o.Sink, bus: b, ctx: ctx,
		deadline: o.Deadline, trace: o.Trace, traced: !o.Trace.IsZero(), began: time.Now(),
		done:  make(chan struct{}),
		tasks: make([]Task, len(g.stages)),
		flows: make([]flow, len(g.edges)),
	}
	if r.id == 0 {
		r.id = messages.RequestID(r.key)
	}
	r.openTasks.Store(int32(len(g.stages)))
	r.refs.Store(1)
	for i, st := range g.stages {
		t := &r.tasks[i]
		t.stage = st
		t.outputs = outputs{req: r, task: t, edges: st.out}
		t.Emitter = Emitter{out: &t.outputs}
	}
	for i, e := range g.edges {
		f := &r.flows[i]
		f.edge, f.req = e, r
		if e.from != nil {
			f.producer = &r.tasks[e.from.index]
		}
		if e.to != nil {
			f.consumer = &r.tasks[e.to.index]
		}
	}
	r.inputs = outputs{req: r, edges: g.inputs, producer: b.inputProducer}
	r.results.init(len(g.results), b.lastActive.Spinner(), r.sink == nil)
	return r
}

func (r *Request) flow(e *edge) *flow { return &r.flows[e.index] }

// ID names the request.
func (r *Request) ID() messages.RequestID { return r.id }

// Done is closed when the request is over.
func (r *Request) Done() <-chan struct{} { return r.done }

// Outcome is how the request ended, or Running.
func (r *Request) Outcome() Outcome { return Outcome(r.outcome.Load()) }

// Err is nil while the request is open and when it completed. Otherwise it
// says why it ended: a *StageError, ErrAborted or ErrDeadline.
func (r *Request) Err() error {
	if !r.over() {
		return nil
	}
	<-r.done
	return r.err
}

func (r *Request) over() bool { return r.Outcome() != Running }

// endedEarly reports whether the request is over and did not complete: nothing it
// sent reaches anybody any more.
func (r *Request) endedEarly() bool { o := r.Outcome(); return o != Running && o != Completed }

// cause is what an operation on a request that is over returns.
func (r *Request) cause() error {
	<-r.done
	return cmp.Or(r.err, ErrEnded)
}

// Send sends one input to every first stage, waiting for room until ctx ends. Where a first stage says in Go which
// type it takes (Stage, Expand, Join2), an input of another type is ErrPayload.
func (r *Request) Send(ctx context.Context, v any, opts ...EmitOption) error {
	if err := r.bus.graph.checkInput(v); err != nil {
		return err
	}
	err := r.Input(ctx).Emit(v, opts...)
	if errors.Is(err, ErrCanceled) {
		return r.callEnded(ctx)
	}
	return err
}

// Input emits the request's inputs: for payloads that are filled in place.
// Emissions wait until ctx ends.
func (r *Request) Input(ctx context.Context) Emitter {
	return Emitter{out: &r.inputs, cancel: ctx.Done()}
}

// CloseSend ends the inputs. It does not wait. Where the request has failed, was aborted or is past its
// deadline, the error says so.
func (r *Request) CloseSend(context.Context) error {
	r.inputs.closeStreams()
	if r.endedEarly() {
		return r.cause()
	}
	return nil
}

// Abort ends the request, unless it is over: with ErrAborted, wrapping the
// reason if there is one.
func (r *Request) Abort(reason error) {
	err := ErrAborted
	if reason != nil {
		err = fmt.Errorf("%w: %w", ErrAborted, reason)
	}
	r.end(Aborted, err)
}

// fail ends the request because of a delivery.
func (r *Request) fail(d *Delivery, stage string, err error) {
	r.end(Failed, d.withLocation(stage, err))
}

// withLocation is an error with the place of the delivery, unless it says its own: that of an emission.
func (d *Delivery) withLocation(stage string, err error) error {
	if _, located := locationIn(err, stage); located {
		return err
	}
	return d.errorAt(stage, err)
}

// end decides how the request ends; only the first call does. What it still
// has in flight is reclaimed by whoever holds it. One that fails, or is aborted, when its
// deadline is over ends as its timer would have it, which others may be faster than: a
// stage's context ends at the deadline too, wherever the stage is.
func (r *Request) end(o Outcome, err error) {
	lockorder.AssertNone("a request is ended")
	if (o == Failed || o == Aborted) && r.late() && !r.over() {
		o, err = PastDeadline, r.expired() // which looks at the stages, and so comes before the lock
	}
	r.mu.Lock()
	if r.over() || o == Completed && r.givenUp.Load() {
		r.mu.Unlock()
		return
	}
	if fault := r.pendingErr.Load(); o == Completed && fault != nil {
		o, err = Failed, *fault
		if r.late() {
			o, err = PastDeadline, r.expiredAt(nil)
		}
	}
	r.err = endedBy(err)
	r.bus.outcomes[o].Add(1) // first: when the request is gone, it has been counted
	r.outcome.Store(uint32(o))
	timer, unwatch := r.timer, r.unwatch
	r.mu.Unlock()
	close(r.done)

	if timer != nil {
		timer.Stop()
	}
	if unwatch != nil && o != Completed { // else its results go with the context: see partDone
		unwatch()
	}
	if o != Completed {
		r.bus.admission.withdraw(r)
		r.releaseQueued()
	}
	if r.owner != nil {
		r.owner.Ended()
	}
	r.endSink()
}

// releaseQueued reclaims what a request that did not complete leaves behind.
func (r *Request) releaseQueued() {
	for i := range r.flows {
		r.flows[i].discardQueue()
	}
	for i := range r.tasks {
		r.tasks[i].wake()
	}
	r.closeResults(r.Outcome() != Aborted)
}

// taskDone is called when a stage has done all of its work for the request.
func (r *Request) taskDone() {
	if r.openTasks.Add(-1) == 0 {
		r.end(Completed, nil)
	}
}

// holdForPayload keeps the request from being gone while the caller has a payload in hand,
// whose room is the store's: the end of the request does not wait for whoever is
// sending to it. It reports false when the request is gone.
func (r *Request) holdForPayload() bool {
	for {
		n := r.refs.Load()
		if n == 0 {
			return false
		}
		if r.refs.CompareAndSwap(n, n+1) {
			r.inHand.Add(1)
			return true
		}
	}
}

// unholdForPayload undoes one hold.
func (r *Request) unholdForPayload() {
	r.inHand.Add(-1)
	r.releaseRef()
}

// releaseRef is called when a slot is given back, when the caller is done, and when
// it has a payload in hand no more.
// After the last one nothing of the request is left.
func (r *Request) releaseRef() {
	if r.refs.Add(-1) == 0 {
		r.bus.forget(r)
	}
}

// Recv returns the next result. The caller finishes it. At the end of all
// results of a completed request the error is io.EOF; for others it is how
// the request ended, which is never taken for io.EOF. A request that fails, or is past its deadline, gives
// the results first that had come by then, but for tensors in the memory of a GPU and payloads of connectors. A context that ends gives
// its own error, and the request goes on. Where the context of the request has ended before
// all results of a completed one were received, the error is that context's.
func (r *Request) Recv(ctx context.Context) (*Delivery, error) {
	for {
		d, err := r.results.next(ctx, r)
		if err != nil {
			return nil, r.endOfResults(err)
		}
		if ok, err := r.acceptResult(d); err != nil {
			r.fail(d, "", err)
		} else if ok {
			return d, nil
		}
		_ = d.Finish(nil) // held by us, so not finished before
		d.recycle()
	}
}

// acceptResult checks a result's place and takes its payload. It reports
// false for what the caller need not see.
func (r *Request) acceptResult(d *Delivery) (bool, error) {
	ok, err := d.flow.accept(d)
	if err != nil || !ok {
		return false, err
	}
	if d.EOS {
		r.results.streamEnded()
	}
	if d.Bare() {
		return false, nil
	}
	return true, d.openPayload()
}

// Results iterates over the results, finishing each one after the loop body
// has run. An error ends the iteration; io.EOF is not reported.
func (r *Request) Results(ctx context.Context) iter.Seq2[*Delivery, error] {
	return func(yield func(*Delivery, error) bool) {
		for {
			d, err := r.Recv(ctx)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
			more := yield(d, nil)
			_ = d.Finish(nil) // the body may have done it
			if !more {
				return
			}
		}
	}
}

// Wait waits for the request to be over and returns Err. It does not read
// results: a request with more results than fit their window waits for that.
func (r *Request) Wait(ctx context.Context) error {
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return r.callEnded(ctx)
	}
}

// Close gives up the results not yet received, and aborts the request if it
// is open. A request that was received to its end need not be closed, nor one whose
// context ends.
func (r *Request) Close() {
	r.Abort(nil)
	r.closeResults(false)
}

// closeResults gives back the results that were not received. The caller may still receive copies of them,
// which hold nothing of the request, in front of its error.
func (r *Request) closeResults(copies bool) {
	copies = copies && r.sink == nil
	unread := r.results.close(copies)
	for _, e := range r.bus.graph.results {
		r.flow(e).discardQueue()
	}
	var all []*Delivery
	for _, d := range unread {
		if copies {
			all = d.appendCopy(all)
		}
		d.reclaim()
	}
	if copies {
		r.results.setCopies(all)
	}
	r.endSink() // of a request that has completed: no result is to come any more
	r.tryEndCaller()
}

// resultFinished is called when the caller finished a result.
func (r *Request) resultFinished() {
	r.results.finished()
	r.tryEndCaller()
}

// tryEndCaller ends the caller's part if there is nothing left of it.
func (r *Request) tryEndCaller() {
	if r.results.callerDone() {
		r.unwatchEnded()
		r.releaseRef()
	}
}
