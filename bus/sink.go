package bus

import (
	"errors"
	"slices"
)

// Sink takes the results of a request that are not received in this process: a process that
// submitted it takes them, or the host whose task it is.
type Sink interface {
	// Emitted takes a delivery at the end of its flow. It does not wait, and is called with
	// the producer's side of the flow locked: see DeliveryControl.PassOn.
	Emitted(d *Delivery)
	// Ended is called once, when the request is over and, if it completed, all results have
	// been emitted. It may be called with locks held.
	Ended()
	// Describe says who takes the results, for reports.
	Describe() string
}

// Carrier takes deliveries to another process.
type Carrier interface {
	// Put sends a delivery on its way, and does not wait. What is put is finished by the
	// carrier.
	Put(d *Delivery, edge int) error
}

// Home is a request at the host where it lives, for a process that has submitted it. What is
// sent goes there: the graph has no stage.
type Home interface {
	Carrier // of inputs
	// InputEnded is told that the stream of an input has ended: with its last delivery, or
	// without one. It is called with the producer's side of the flow locked.
	InputEnded(bare bool)
	// Ended is called once, when the request is over here.
	Ended()
}

// leave has an input go to where the request lives. It is called with the producer's side of
// the flow locked.
func (r *Request) leave(d *Delivery) {
	_, err := d.flow.accept(d) // it is the first to see it, and in order
	last := d.EOS
	if d.Bare() {
		d.discard()
		r.up.InputEnded(true)
		return
	}
	d.state.Store(stateHeld)
	r.parts.Add(1)
	if err == nil {
		err = d.open()
	}
	if err == nil {
		err = r.up.Put(d, slices.Index(r.bus.graph.inputs, d.flow.edge))
	}
	if err != nil { // before the host hears of the end, which it may answer as completed
		r.failSoon(err, d)
	}
	if last {
		r.up.InputEnded(false)
	}
}

// PassOn has a carrier take a delivery on, and notes what the delivery says of its stream.
func (c DeliveryControl) PassOn(to Carrier) {
	d := c.d
	r := d.flow.req
	if ok, err := d.flow.accept(d); err != nil || !ok {
		r.turnAway(d, err)
		return
	}
	last := d.EOS
	if d.Bare() {
		d.discard() // it has no credit to give back
	} else {
		r.results.hold(d)
		err := d.open()
		if err == nil {
			err = to.Put(d, slices.Index(r.bus.graph.results, d.flow.edge))
		}
		switch {
		case errors.Is(err, ErrHostGone): // which takes nothing
			go func() { _ = d.Finish(nil) }() // not under the lock
		case err != nil:
			r.failSoon(err, d)
		}
	}
	if last && r.results.streamEnded() == 0 && r.over() {
		go r.endSink() // not under the lock
	}
}

// turnAway drops a delivery that is out of order, or a retry's repeat.
func (r *Request) turnAway(d *Delivery, err error) {
	f, credit, at := d.flow, d.credit, d.errorAt("", err)
	d.discard()       // now: a bus that closes does not wait for what follows
	go f.give(credit) // not under the lock
	if err != nil {
		r.failSoon(at)
	}
}

// endSink tells the sink that the request is over, once it is and no result is to come.
func (r *Request) endSink() {
	o := r.Outcome()
	if r.sink == nil || o == Running || !r.results.endSink(o == Completed) {
		return
	}
	r.sink.Ended()
	if o == Completed { // else what is unread is given up, and with it the sink's part
		r.partDone()
	}
}

// endSink reports, once, that the sink is to be told of the request's end.
func (rs *results) endSink(completed bool) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.sinkEnded || completed && rs.streams > 0 {
		return false
	}
	rs.sinkEnded = true
	rs.ended = rs.ended || completed
	return true
}
