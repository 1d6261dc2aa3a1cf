package bus

import (
	"errors"
	"slices"
)

// Sink takes the results of a request for another process: the process that submitted the request,
// or the host whose task it is.
type Sink interface {
	RemoteSink // of results
	// Ended is called once, when the request is over and, if it completed, all results have
	// been put. It is called without locks.
	Ended()
	// Describe names the process that takes the results, for reports.
	Describe() string
}

// RemoteSink sends deliveries to another process.
type RemoteSink interface {
	// Put sends a delivery, and does not wait: it is called with the stream of the delivery
	// locked. The sink finishes the delivery; after an error it has not taken it.
	Put(d *Delivery, edge int) error
	// Returns reports whether the next delivery on an edge, with the sequence seq, may refer to a
	// payload that the other process has delivered to this process. If so, the delivery goes to no
	// third process. Returns is called with the stream locked, and does not wait.
	Returns(edge int, seq uint64) bool
}

// ErrNotTaken is the error of Put when the other process is gone: it does not fail the delivery's
// request, whose end follows.
var ErrNotTaken = errors.New("bus: the delivery was not taken")

// RequestOwner is the request at its host, in the process that has submitted it. Inputs go to the
// host: the graph of this process has no stage.
type RequestOwner interface {
	RemoteSink // of inputs
	// InputEnded notes that the stream of an input has ended: with its last delivery, or
	// bare, after it. It is called with the stream locked, and does not wait.
	InputEnded(bare bool)
	// Ended is called once, when the request is over in this process. It is called without locks.
	Ended()
}

// sendToOwner sends an input to the host of the request. The stream is locked.
func (r *Request) sendToOwner(d *Delivery, after *AfterUnlock) {
	_, err := d.flow.accept(d) // the first check of its order
	last, bare := d.EOS, d.Bare()
	if bare {
		d.discard()
	} else {
		d.state.Store(stateHeld)
		r.refs.Add(1)
		if err == nil {
			err = r.put(d, r.owner, r.bus.graph.inputs)
		}
		r.handlePutError(d, err, after) // before the end is sent: the host may answer it with the completion
	}
	if last {
		r.owner.InputEnded(bare)
	}
}

// sendToSink sends a result to the sink, and notes the end of its stream. The stream is locked.
func (r *Request) sendToSink(d *Delivery, after *AfterUnlock) {
	if ok, err := d.flow.accept(d); err != nil || !ok {
		r.rejectResult(d, err, after)
		return
	}
	last := d.EOS
	if d.Bare() {
		d.discard() // it has no credit
	} else {
		r.results.countHeld(d)
		r.handlePutError(d, r.put(d, r.sink, r.bus.graph.results), after)
	}
	if last && r.results.streamEnded() == 0 && r.over() {
		after.endSink(r)
	}
}

// put opens a delivery and puts it into a sink, with the index of its edge among edges.
func (r *Request) put(d *Delivery, to RemoteSink, edges []*edge) error {
	if err := d.openPayload(); err != nil {
		return err
	}
	return to.Put(d, slices.Index(edges, d.flow.edge))
}

// mayRefer reports whether the next delivery of the flow may refer to a payload outside the store. The
// stream is locked.
func (f *flow) mayRefer() bool {
	r := f.req
	switch {
	case f.consumer != nil:
	case f.edge.toOwner:
		return r.owner.Returns(slices.Index(r.bus.graph.inputs, f.edge), f.seq)
	case r.sink != nil:
		return r.sink.Returns(slices.Index(r.bus.graph.results, f.edge), f.seq)
	}
	return true
}

// handlePutError notes a delivery that was not put, unless err is nil.
func (r *Request) handlePutError(d *Delivery, err error, after *AfterUnlock) {
	if err == nil {
		return
	}
	if !errors.Is(err, ErrNotTaken) {
		after.Fail(r, err)
	}
	after.finish(d)
}

// rejectResult notes that a delivery is dropped: it is out of order, or a duplicate of a retry.
func (r *Request) rejectResult(d *Delivery, err error, after *AfterUnlock) {
	if err != nil {
		after.Fail(r, d.errorAt("", err))
	}
	after.giveCredit(d.flow, d.credit)
	after.drop(d)
}

// endSink tells the sink that the request is over, when no further result follows.
func (r *Request) endSink() {
	o := r.Outcome()
	if r.sink == nil || o == Running || !r.results.claimSinkEnd(o == Completed) {
		return
	}
	if o != Completed { // a result that is being put must reach the sink before the end
		for _, e := range r.bus.graph.results {
			r.flow(e).awaitSender()
		}
	}
	r.sink.Ended()
	if o == Completed { // otherwise closeResults ends the sink's part
		r.tryEndCaller()
	}
}

// claimSinkEnd reports, once, that the sink has to be told of the request's end.
func (rs *results) claimSinkEnd(completed bool) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.sinkEnded || completed && rs.streams > 0 && !rs.closed {
		return false
	}
	rs.sinkEnded = true
	rs.ended = rs.ended || completed
	return true
}
