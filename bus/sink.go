package bus

import (
	"errors"
	"slices"
)

// sink takes the results of a request that are not received in this process: a process that
// submitted it takes them, or the host whose task it is.
type sink interface {
	// emitted takes a delivery at the end of its flow. It does not wait, and is called with
	// the producer's side of the flow locked: see Request.passOn.
	emitted(d *Delivery)
	// ended is called once, when the request is over and, if it completed, all results have
	// been emitted. It may be called with locks held.
	ended()
	// describe says who takes the results, for reports.
	describe() string
}

// passOn has a delivery put where it goes on to, and notes what it says of its stream. What
// is put is finished by whoever takes it.
func (r *Request) passOn(d *Delivery, put func(d *Delivery, edge int) error) {
	ok, err := d.flow.accept(d)
	if err != nil || !ok { // out of order, or a retry's repeat
		f, credit, at := d.flow, d.credit, d.errorAt("", err)
		d.discard() // now: a bus that closes does not wait for what follows
		go func() { // not under the lock
			f.give(credit)
			if err != nil {
				r.end(Failed, at)
			}
		}()
		return
	}
	last := d.EOS
	if d.Bare() {
		d.discard() // it has no credit to give back
	} else {
		r.results.hold(d)
		if err = d.open(); err == nil {
			err = put(d, slices.Index(r.bus.graph.results, d.flow.edge))
		}
		if err != nil {
			go func() { // not under the lock
				if !errors.Is(err, ErrHostGone) { // a host that is gone takes nothing
					r.end(Failed, err)
				}
				_ = d.Finish(nil)
			}()
		}
	}
	if last && r.results.streamEnded() == 0 && r.over() {
		go r.endSink() // not under the lock
	}
}

// endSink tells the sink that the request is over, once it is and no result is to come.
func (r *Request) endSink() {
	if r.sink == nil || !r.over() {
		return
	}
	completed := r.Outcome() == Completed
	if !r.results.endSink(completed) {
		return
	}
	r.sink.ended()
	if completed { // else what is unread is given up, and with it the sink's part
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
