package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// limitDeadline takes the earlier of the option's deadline and the context's, and converts it to the monotonic clock:
// setting the wall clock neither ends nor prolongs a request.
func (o *RequestOptions) limitDeadline(ctx context.Context) {
	at := o.Deadline
	if own, ok := ctx.Deadline(); ok && (at.IsZero() || own.Before(at)) {
		at = own
	}
	if !at.IsZero() {
		now := time.Now()
		o.Deadline = now.Add(at.Sub(now))
	}
}

// EndsAtDeadline notes that a process has ended its part of the request because the deadline is over by its clock.
// The request can no longer complete, and ends at its deadline. Without a deadline, or when it is over by this
// process's clock, EndsAtDeadline does nothing and reports false.
func (c RequestControl) EndsAtDeadline() bool {
	if c.r.deadline.IsZero() || c.r.late() {
		return false
	}
	c.r.givenUp.Store(true)
	return true
}

// hostGrace is how long a node waits after the deadline of a request for the host's outcome, which names the stage.
// The host may be stopped.
const hostGrace = time.Second

// watch ends the request at its deadline, and with its context.
// The context of a completed request is watched until the caller has finished the results.
func (r *Request) watch() {
	if !r.deadline.IsZero() {
		at := r.deadline
		if r.owner != nil {
			at = at.Add(hostGrace)
		}
		r.mu.Lock() // end reads timer, and the timer may call it at once
		r.timer = time.AfterFunc(time.Until(at), func() { r.end(PastDeadline, r.expired()) })
		r.mu.Unlock()
	}
	if r.ctx.Done() != nil {
		unwatch := context.AfterFunc(r.ctx, r.contextEnded)
		r.mu.Lock()
		r.unwatch = unwatch
		r.mu.Unlock()
		if r.endedEarly() || r.results.callerHasEnded() { // end has read unwatch before it was set
			unwatch()
		}
	}
}

// late reports whether the request's deadline is over.
func (r *Request) late() bool { return !r.deadline.IsZero() && time.Until(r.deadline) <= 0 }

// expired is the error of a request whose deadline is over, with the stages where it is. It takes locks.
func (r *Request) expired() error {
	if r.owner != nil { // the host has the stages
		return r.expiredAt(nil)
	}
	return r.expiredAt(r.atStages())
}

func (r *Request) expiredAt(at []string) error {
	had := r.deadline.Sub(r.began).Round(time.Microsecond)
	text := fmt.Sprintf("%v after it began", had)
	if had < 0 {
		text = fmt.Sprintf("by %v when the request began", r.began.Sub(r.deadline).Round(time.Microsecond))
	}
	if r.owner != nil {
		text += "; the host had not said by then how it ended there"
	}
	if len(at) > 0 && had >= 0 {
		text += ": " + strings.Join(at, ", ")
	}
	if cause := context.Cause(r.ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %s: %w", ErrDeadline, text, cause)
	}
	return fmt.Errorf("%w: %s", ErrDeadline, text)
}

// lateWith reports whether a context has ended by its deadline and the request's deadline is over, too.
func (r *Request) lateWith(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) && r.late()
}

// callEnded is the error of a call on the request whose context has ended: the request's error, where both have
// the same deadline.
func (r *Request) callEnded(ctx context.Context) error {
	if r.lateWith(ctx) {
		<-r.done // the deadline's timer closes it soon
		if r.err != nil {
			return r.err
		}
	}
	return context.Cause(ctx)
}

// contextEnded ends the request with its context. Of a completed request it releases the results that the
// caller has not received: they keep the permit.
func (r *Request) contextEnded() {
	switch {
	case !r.lateWith(r.ctx):
		r.Abort(context.Cause(r.ctx))
		r.giveUpUnread()
	case r.owner != nil:
		time.AfterFunc(hostGrace, r.endLate)
	default:
		r.endLate()
	}
}

// endLate ends the request at the deadline of its context.
func (r *Request) endLate() {
	r.end(PastDeadline, r.expired())
	r.giveUpUnread()
}

// giveUpUnread releases the unreceived results of a completed request whose context has ended.
func (r *Request) giveUpUnread() {
	if r.Outcome() != Completed {
		return
	}
	err := fmt.Errorf("bus: the request has completed, and its context ended before its results were received: %w",
		context.Cause(r.ctx))
	r.unread.Store(&err)
	r.closeResults(false)
}

// endOfResults is the error of Recv at the end of the results: io.EOF, unless results were given up unread.
func (r *Request) endOfResults(err error) error {
	if unread := r.unread.Load(); unread != nil && errors.Is(err, io.EOF) && !r.results.received() {
		return *unread
	}
	return err
}

// received reports whether the caller has received all results.
func (rs *results) received() bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.streams == 0
}

// callerHasEnded reports whether the caller has received and finished, or given up, all results.
func (rs *results) callerHasEnded() bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.callerEnded
}

// unwatchEnded stops watching the context when the caller's part is over, which may be after the request's end.
func (r *Request) unwatchEnded() {
	if r.ctx.Done() == nil {
		return
	}
	r.mu.Lock()
	unwatch := r.unwatch
	r.mu.Unlock()
	if unwatch != nil {
		unwatch()
	}
}

// requestContext makes a request a context.Context.
type requestContext Request

func (r *Request) context() context.Context { return (*requestContext)(r) }

// Deadline implements context.Context.
func (c *requestContext) Deadline() (time.Time, bool) {
	return c.deadline, !c.deadline.IsZero()
}

// Done implements context.Context.
func (c *requestContext) Done() <-chan struct{} { return c.done }

// Err implements context.Context.
func (c *requestContext) Err() error {
	r := (*Request)(c)
	switch {
	case !r.over():
		return nil
	case r.Outcome() == PastDeadline:
		return context.DeadlineExceeded
	default:
		return context.Canceled
	}
}

// Value implements context.Context.
func (c *requestContext) Value(key any) any {
	return c.ctx.Value(key)
}
