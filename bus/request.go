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

// Outcome is the state in which a request ended.
type Outcome uint32

// Outcomes. A request is Running until it gets one of the others, which is final.
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

// Request is one run of inputs through the graph. Its methods are safe for
// concurrent use; Send and CloseSend keep the order in which they are called. A Send that
// still waits when CloseSend is called gets ErrAfterEnd.
type Request struct {
	id       messages.RequestID
	key      uint64       // unique in this bus; equal to id, unless another process has assigned the id
	client   uint32       // the process that submitted it: see RequestOptions
	order    uint64       // the order of slots; of equal orders the smaller key comes first
	owner    RequestOwner // the request at its host, in a node that submitted it; nil: this process owns it
	sink     Sink         // takes the results; nil: the caller receives them in this process
	bus      *Bus
	ctx      context.Context // of Submit
	deadline time.Time       // see RequestOptions; zero: none
	trace    messages.TraceContext
	traced   bool
	began    time.Time

	done       chan struct{} // closed when the request is over
	outcome    atomic.Uint32
	err        error                 // written before done is closed
	pendingErr atomic.Pointer[error] // the error with which it is about to fail: see AfterUnlock.Fail
	givenUp    atomic.Bool           // it cannot complete any more: see EndsAtDeadline

	tasks   []Task // by stage
	flows   []flow // by edge
	inputs  outputs
	results results

	flushBatch atomic.Pointer[FlushBatch] // of the session that handles packets of the request at the moment; nil: none does

	openTasks atomic.Int32 // tasks that have not ended
	refs      atomic.Int32 // references by slots, the caller and its payloads: at 0 the request is forgotten
	inHand    atomic.Int32 // payloads for which the caller has reserved space, and which it has not sent

	unread atomic.Pointer[error] // why unreceived results were released: ctx has ended
	logged atomic.Bool           // the log has named it as the holder of a permit

	// Guarded by admission.mu.
	waiting  []*Task // for slots
	backward bool    // it waits for a stage before one whose slot it holds

	mu      lockorder.Mutex[lockorder.Request] // guards the fields below, and the change from Running
	timer   *time.Timer                        // of the deadline
	unwatch func() bool                        // stops watching ctx: see watch
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

// ID is the id of the request.
func (r *Request) ID() messages.RequestID { return r.id }

// Done is closed when the request is over.
func (r *Request) Done() <-chan struct{} { return r.done }

// Outcome is the outcome of the request, or Running.
func (r *Request) Outcome() Outcome { return Outcome(r.outcome.Load()) }

// Err is nil while the request is running and when it completed. Otherwise it
// is the error of its end: a *StageError, ErrAborted or ErrDeadline.
func (r *Request) Err() error {
	if !r.over() {
		return nil
	}
	<-r.done
	return r.err
}

func (r *Request) over() bool { return r.Outcome() != Running }

// endedEarly reports whether the request is over and did not complete: its queued
// deliveries are discarded.
func (r *Request) endedEarly() bool { o := r.Outcome(); return o != Running && o != Completed }

// cause is the error of an operation on a request that is over.
func (r *Request) cause() error {
	<-r.done
	return cmp.Or(r.err, ErrEnded)
}

// Send sends one input to every first stage. It waits for credit and space until ctx ends. If a first stage has a Go
// type for its input (Stage, Expand, Join2), a value of another type is ErrPayload.
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

// Input emits the request's inputs, for payloads that are filled in place.
// Emissions wait until ctx ends.
func (r *Request) Input(ctx context.Context) Emitter {
	return Emitter{out: &r.inputs, cancel: ctx.Done()}
}

// CloseSend ends the inputs. It does not wait. If the request has failed, was aborted or is past its
// deadline, the error is that of the request.
func (r *Request) CloseSend(context.Context) error {
	r.inputs.closeStreams()
	if r.endedEarly() {
		return r.cause()
	}
	return nil
}

// Abort ends the request with ErrAborted, wrapping the reason if there is one.
// A request that is over stays as it is.
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

// withLocation adds the location of the delivery to an error, unless the error has a location at the stage: that of an
// emission.
func (d *Delivery) withLocation(stage string, err error) error {
	if _, located := locationIn(err, stage); located {
		return err
	}
	return d.errorAt(stage, err)
}

// end ends the request; only the first call has an effect. Each holder of its
// deliveries releases them. A request that fails or is aborted after its deadline ends as
// PastDeadline, although the timer is late: the contexts of stages end at the deadline, too,
// in every process, and their errors may come first.
func (r *Request) end(o Outcome, err error) {
	lockorder.AssertNone("a request is ended")
	if (o == Failed || o == Aborted) && r.late() && !r.over() {
		o, err = PastDeadline, r.expired() // expired takes locks of the stages, and so is called before the lock
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
	r.bus.outcomes[o].Add(1) // first: a forgotten request has been counted
	r.outcome.Store(uint32(o))
	timer, unwatch := r.timer, r.unwatch
	r.mu.Unlock()
	close(r.done)

	if timer != nil {
		timer.Stop()
	}
	if unwatch != nil && o != Completed { // a completed request keeps the watch for its results: see tryEndCaller
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

// releaseQueued discards the queues of a request that did not complete, and wakes its workers.
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

// holdForPayload keeps the request from being forgotten while the caller has a payload in
// the store that is not sent: the end of a request does not wait for senders. It reports
// false when the request is forgotten.
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

// unholdForPayload ends one holdForPayload.
func (r *Request) unholdForPayload() {
	r.inHand.Add(-1)
	r.releaseRef()
}

// releaseRef releases a reference: of a slot, of the caller, or of a payload of the
// caller. With the last one the request is forgotten.
func (r *Request) releaseRef() {
	if r.refs.Add(-1) == 0 {
		r.bus.forget(r)
	}
}

// Recv returns the next result. The caller finishes it. After the last result of
// a completed request the error is io.EOF. After another outcome it is the error
// of the request, which is never io.EOF; before it, Recv returns the results that
// had arrived by then, if the request failed or is past its deadline, except for
// tensors in GPU memory and payloads of connectors. When ctx ends, the error is
// the context's, and the request goes on. When the context of a completed request
// has ended before all results were received, the error is that context's.
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
		_ = d.Finish(nil) // only Recv holds it
		d.recycle()
	}
}

// acceptResult checks the order of a result and opens its payload. It reports
// false for a duplicate and for an end without payload.
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

// Results iterates over the results, and finishes each after the loop body. An
// error ends the iteration; io.EOF is not reported.
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
			_ = d.Finish(nil) // the body may have finished it
			if !more {
				return
			}
		}
	}
}

// Wait waits until the request is over and returns Err. It does not receive
// results: a request with more results than fit their window waits for Recv.
func (r *Request) Wait(ctx context.Context) error {
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return r.callEnded(ctx)
	}
}

// Close aborts the request if it is running, and releases the results that were
// not received. It is not needed for a request that was received to its end, nor
// for one whose context ends.
func (r *Request) Close() {
	r.Abort(nil)
	r.closeResults(false)
}

// closeResults releases the results that were not received. With copies the caller may still receive copies
// of them before the request's error; a copy holds no payload and no credit.
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
	r.endSink() // of a completed request: no further result follows
	r.tryEndCaller()
}

// resultFinished is called when the caller finished a result.
func (r *Request) resultFinished() {
	r.results.finished()
	r.tryEndCaller()
}

// tryEndCaller ends the caller's part if it has no result left to receive or finish.
func (r *Request) tryEndCaller() {
	if r.results.callerDone() {
		r.unwatchEnded()
		r.releaseRef()
	}
}
