package bus

import (
	"context"
	"io"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// results is the caller's end of a request: what the last stages sent and the
// caller has not received.
type results struct {
	mu            lockorder.Mutex[lockorder.Results] // guards all of it
	queue         []*Delivery                        // queue[head:] are waiting
	queueBuf      [2]*Delivery                       // the queue's memory, as long as it is short
	head          int
	wake          chan struct{} // capacity 1: something changed
	asleep        int           // how many wait in wake
	streams       int           // those whose end has not been received
	held          int           // received and not finished
	ended         bool          // the caller has seen the end, or does not want it
	closed        bool
	copiesPending bool // what was unread when the request failed is on its way back into the queue
	callerEnded   bool // the caller's part is over
	sinkEnded     bool // the sink was told of the request's end
	woken         bool // one of those who wait is about to run
	spinner       *actors.Spinner
}

func (rs *results) init(streams int, spinner *actors.Spinner, received bool) {
	rs.streams, rs.spinner = streams, spinner
	rs.queue = rs.queueBuf[:0]
	if received { // else a sink takes them
		rs.wake = make(chan struct{}, 1)
	}
}

// push adds a result. It never waits: the credit of the edge bounds the queue. It reports
// false of results that the caller has given up.
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

// countHeld counts a result that goes its own way.
func (rs *results) countHeld(d *Delivery) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.held++
	d.state.Store(stateHeld)
}

// signal has one of those who wait look again. Who finds something passes the
// signal on if there is more.
func (rs *results) signal() {
	select {
	case rs.wake <- struct{}{}:
	default:
	}
}

// next waits for a result. It is the caller's from then on.
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
			over = nil // known by now: what is missing will signal
		}
	}
}

// sleep waits for a signal, unless a result has come meanwhile.
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

// poll looks for what other processes send, before the goroutine parks or in place of that.
func (rs *results) poll(ctx context.Context, over <-chan struct{}) {
	if !rs.spinner.NeverParks() {
		rs.spinner.Poll(actors.Free)
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
	for rs.spinner.PollUntil(actors.Free, called) {
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
	if rs.asleep > 0 && (rs.head < len(rs.queue) || rs.closed) { // more may wait than there are results
		rs.signal()
	}
	rs.held++
	d.state.Store(stateHeld)
	return d
}

// endError says how the results end when none is left, or nil when more may come.
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
	rs.signal() // for others that wait
	r.tryEndCaller()
	return io.EOF
}

// failure says how the results of a request end that did not complete, or nil when copies of some follow.
func (rs *results) failure(r *Request) error {
	rs.mu.Lock()
	more := rs.copiesPending || rs.head < len(rs.queue)
	rs.mu.Unlock()
	if more {
		return nil
	}
	rs.signal() // for others that wait
	return r.cause()
}

// streamEnded notes the end of one stream, and returns how many have not ended.
func (rs *results) streamEnded() (left int) {
	rs.mu.Lock()
	rs.streams--
	left = rs.streams
	rs.mu.Unlock()
	rs.signal()
	return left
}

// close takes what is left. Where copies of that are to be received, uncopied follows.
func (rs *results) close(copies bool) []*Delivery {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	q := rs.queue[rs.head:]
	rs.queue, rs.head, rs.closed, rs.ended = nil, 0, true, true
	rs.copiesPending = copies
	return q
}

// setCopies has copies be received in place of what close took, unless the caller wants them no more.
func (rs *results) setCopies(all []*Delivery) {
	rs.mu.Lock()
	if rs.copiesPending {
		rs.queue, rs.copiesPending = all, false
	}
	rs.mu.Unlock()
	rs.signal()
}

// finished counts a result that the caller gave back.
func (rs *results) finished() {
	rs.mu.Lock()
	rs.held--
	rs.mu.Unlock()
}

// callerDone reports, once, that the caller's part is over: nothing is left
// to receive, and everything received was finished.
func (rs *results) callerDone() bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.callerEnded || !rs.ended || rs.held > 0 {
		return false
	}
	rs.callerEnded = true
	return true
}
