package bus

import (
	"context"
	"io"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// results is the queue of results that the last stages have sent and the caller
// has not received.
type results struct {
	mu            lockorder.Mutex[lockorder.Results] // guards all fields
	queue         []*Delivery                        // queue[head:] are waiting
	queueBuf      [2]*Delivery                       // the first memory of queue
	head          int
	wake          chan struct{} // capacity 1: signals a change
	asleep        int           // receivers that wait on wake
	streams       int           // streams whose end has not been received
	held          int           // results received and not finished
	ended         bool          // the caller has received the end, or has closed the results
	closed        bool
	copiesPending bool // copies of the unread results of a failed request follow
	callerEnded   bool // the caller's part is over
	sinkEnded     bool // the sink was told of the request's end
	woken         bool // a waiting receiver is about to run
	spinner       *actors.Spinner
}

func (rs *results) init(streams int, spinner *actors.Spinner, received bool) {
	rs.streams, rs.spinner = streams, spinner
	rs.queue = rs.queueBuf[:0]
	if received { // otherwise a sink takes them
		rs.wake = make(chan struct{}, 1)
	}
}

// push adds a result. It never waits: the credit of the edge bounds the queue. It reports
// false when the results are closed.
func (rs *results) push(d *Delivery) bool {
	rs.mu.Lock()
	closed, asleep := rs.closed, rs.asleep > 0
	if asleep && !closed && !rs.woken {
		rs.woken = true
		rs.spinner.Wake()
	}
	if !closed {
		rs.queue = append(rs.queue, d)
	}
	rs.mu.Unlock()
	if asleep && !closed {
		rs.signal()
	}
	return !closed
}

// countHeld counts a result that a sink takes instead of the queue.
func (rs *results) countHeld(d *Delivery) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.held++
	d.state.Store(stateHeld)
}

// signal wakes one waiting receiver. A receiver that finds a result signals the
// next if there is more.
func (rs *results) signal() {
	select {
	case rs.wake <- struct{}{}:
	default:
	}
}

// next waits for a result, which the caller then owns.
func (rs *results) next(ctx context.Context, r *Request) (*Delivery, error) {
	over := r.done
	for {
		if d := rs.pop(); d != nil {
			return d, nil
		}
		if err := rs.endError(r); err != nil {
			return nil, err
		}
		d, err := rs.sleep(ctx, r, over)
		if d != nil || err != nil {
			return d, err
		}
		if r.over() {
			over = nil // known by now: further results signal
		}
	}
}

// sleep waits for a signal, unless there is a result already.
func (rs *results) sleep(ctx context.Context, r *Request, over <-chan struct{}) (*Delivery, error) {
	rs.mu.Lock()
	rs.asleep++
	rs.mu.Unlock()
	defer func() {
		rs.mu.Lock()
		rs.asleep--
		if rs.woken {
			rs.woken = false
			rs.spinner.Awake()
		}
		rs.mu.Unlock()
	}()
	if d := rs.pop(); d != nil {
		return d, nil
	}
	rs.poll(ctx, over)
	select {
	case <-rs.wake:
	case <-over:
	case <-ctx.Done():
		return nil, r.callEnded(ctx)
	}
	return nil, nil
}

// poll polls for messages of other processes, before the goroutine parks or instead of parking.
func (rs *results) poll(ctx context.Context, over <-chan struct{}) {
	if !rs.spinner.NeverParks() {
		rs.spinner.Poll(actors.AlwaysBegin)
		return
	}
	called := func() bool {
		select {
		case <-over:
			return true
		case <-ctx.Done():
			return true
		default:
			return len(rs.wake) > 0
		}
	}
	for rs.spinner.PollUntil(actors.AlwaysBegin, called) {
		continue
	}
}

func (rs *results) pop() *Delivery {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.head == len(rs.queue) {
		return nil
	}
	d := rs.queue[rs.head]
	rs.queue[rs.head] = nil
	rs.head++
	switch {
	case rs.head == len(rs.queue):
		rs.queue, rs.head = rs.queue[:0], 0
	case rs.head > len(rs.queue)/2:
		n := copy(rs.queue, rs.queue[rs.head:])
		clear(rs.queue[n:])
		rs.queue, rs.head = rs.queue[:n], 0
	}
	if rs.asleep > 0 && (rs.head < len(rs.queue) || rs.closed) { // more receivers may wait than there are results
		rs.signal()
	}
	rs.held++
	d.state.Store(stateHeld)
	return d
}

// endError is the error after the last result; nil: more results may follow.
func (rs *results) endError(r *Request) error {
	if !r.over() {
		return nil
	}
	if r.Outcome() != Completed {
		return rs.failure(r)
	}
	rs.mu.Lock()
	over := rs.closed || (rs.streams == 0 && rs.head == len(rs.queue))
	rs.ended = rs.ended || over
	rs.mu.Unlock()
	if !over {
		return nil
	}
	rs.signal() // for other receivers
	r.tryEndCaller()
	return io.EOF
}

// failure is the error after the last result of a request that did not complete; nil: copies of results follow.
func (rs *results) failure(r *Request) error {
	rs.mu.Lock()
	more := rs.copiesPending || rs.head < len(rs.queue)
	rs.mu.Unlock()
	if more {
		return nil
	}
	rs.signal() // for other receivers
	return r.cause()
}

// streamEnded notes the end of one stream, and returns how many streams have not ended.
func (rs *results) streamEnded() (left int) {
	rs.mu.Lock()
	rs.streams--
	left = rs.streams
	rs.mu.Unlock()
	rs.signal()
	return left
}

// close returns the unreceived results. With copies a call of setCopies follows.
func (rs *results) close(copies bool) []*Delivery {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	q := rs.queue[rs.head:]
	rs.queue, rs.head, rs.closed, rs.ended = nil, 0, true, true
	rs.copiesPending = copies
	return q
}

// setCopies makes copies receivable instead of the results that close returned, unless close was called again.
func (rs *results) setCopies(all []*Delivery) {
	rs.mu.Lock()
	if rs.copiesPending {
		rs.queue, rs.copiesPending = all, false
	}
	rs.mu.Unlock()
	rs.signal()
}

// finished counts a result that the caller has finished.
func (rs *results) finished() {
	rs.mu.Lock()
	rs.held--
	rs.mu.Unlock()
}

// callerDone reports, once, that the caller's part is over: no result is left to
// receive, and all received results are finished.
func (rs *results) callerDone() bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.callerEnded || !rs.ended || rs.held > 0 {
		return false
	}
	rs.callerEnded = true
	return true
}
