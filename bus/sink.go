package bus

import (
	"errors"
	"slices"
)

// Sink takes the results of a request that are not received in this process: a process that
// submitted it takes them, or the host whose task it is.
type Sink interface {
	RemoteSink // of results
	// Ended is called once, when the request is over and, if it completed, all results have
	// been put. It is called with no lock held.
	Ended()
	// Describe says who takes the results, for reports.
	Describe() string
}

// RemoteSink takes deliveries to another process.
type RemoteSink interface {
	// Put sends a delivery on its way, and does not wait: it is called with the stream of the
	// delivery locked. What is put is finished by the carrier; after an error it has nothing.
	Put(d *Delivery, edge int) error
	// Returns reports whether the next delivery on an edge, which gets the number seq, may refer to a
	// payload that the other process has delivered here. If so, that delivery goes to no other
	// process. Returns is called with the stream locked, and does not wait.
	Returns(edge int, seq uint64) bool
}

// ErrNotTaken is what a carrier returns that takes a delivery no more, without fault of the
// delivery's request: the other process is gone, and the end of the request follows.
var ErrNotTaken = errors.New("bus: the delivery was not taken")

// RequestOwner is a request at the host where it lives, for a process that has submitted it. What is
// sent goes there: the graph has no stage.
type RequestOwner interface {
	RemoteSink // of inputs
	// InputEnded is told that the stream of an input has ended: with its last delivery, or
	// without one. It is called with the stream locked, and does not wait.
	InputEnded(bare bool)
	// Ended is called once, when the request is over here. It is called with no lock held.
	Ended()
}

// sendToOwner has an input go to where the request lives. The stream is locked.
func (r *Request) sendToOwner(d *Delivery, after *AfterUnlock) {
	_, err := d.flow.accept(d) // it is the first to see it, and in order
	last, bare := d.EOS, d.Bare()
	if bare {
		d.discard()
	} else {
		d.state.Store(stateHeld)
		r.refs.Add(1)
		if err == nil {
			err = r.put(d, r.owner, r.bus.graph.inputs)
		}
		r.handlePutError(d, err, after) // before the host hears of the end, which it may answer as completed
	}
	if last {
		r.owner.InputEnded(bare)
	}
}

// sendToSink has the sink take a result, and notes what that says of its stream. The stream is
// locked.
func (r *Request) sendToSink(d *Delivery, after *AfterUnlock) {
	if ok, err := d.flow.accept(d); err != nil || !ok {
		r.rejectResult(d, err, after)
		return
	}
	last := d.EOS
	if d.Bare() {
		d.discard() // it has no credit to give back
	} else {
		r.results.countHeld(d)
		r.handlePutError(d, r.put(d, r.sink, r.bus.graph.results), after)
	}
	if last && r.results.streamEnded() == 0 && r.over() {
		after.endSink(r)
	}
}

// put opens a delivery and gives it to a carrier, which knows its edge by the place among edges.
func (r *Request) put(d *Delivery, to RemoteSink, edges []*edge) error {
	if err := d.openPayload(); err != nil {
		return err
	}
	return to.Put(d, slices.Index(edges, d.flow.edge))
}

// mayRefer reports whether the next delivery of the flow, which leaves its bus, may refer to a payload
// outside the store. The stream is locked.
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

// handlePutError notes that a delivery was not put, unless err is nil.
func (r *Request) handlePutError(d *Delivery, err error, after *AfterUnlock) {
	if err == nil {
		return
	}
	if !errors.Is(err, ErrNotTaken) {
		after.Fail(r, err)
	}
	after.finish(d)
}

// rejectResult notes that a delivery is dropped which is out of order, or a retry's repeat.
func (r *Request) rejectResult(d *Delivery, err error, after *AfterUnlock) {
	if err != nil {
		after.Fail(r, d.errorAt("", err))
	}
	after.giveCredit(d.flow, d.credit)
	after.drop(d)
}

// endSink tells the sink that the request is over, once it is and no result is to come.
func (r *Request) endSink() {
	o := r.Outcome()
	if r.sink == nil || o == Running || !r.results.claimSinkEnd(o == Completed) {
		return
	}
	if o != Completed { // a result may be on its way to the sink, which must not come behind the end
		for _, e := range r.bus.graph.results {
			r.flow(e).awaitSender()
		}
	}
	r.sink.Ended()
	if o == Completed { // else what is unread is given up, and with it the sink's part
		r.tryEndCaller()
	}
}

// claimSinkEnd reports, once, that the sink is to be told of the request's end.
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
