package bus

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// setDeadline takes the earlier of the option's deadline and the context's.
func (r *Request) setDeadline(at time.Time) {
	if own, ok := r.ctx.Deadline(); ok && (at.IsZero() || own.Before(at)) {
		at = own
	}
	if !at.IsZero() {
		r.deadline = at.UnixNano()
	}
}

// watch ends the request at its deadline, and with its context.
func (r *Request) watch() {
	if r.deadline != 0 && !r.bus.node {
		at := time.Unix(0, r.deadline)
		r.mu.Lock() // end, which may come from the timer at once, reads timer
		r.timer = time.AfterFunc(time.Until(at), func() { r.expire(at) })
		r.mu.Unlock()
	}
	if r.ctx.Done() != nil {
		unwatch := context.AfterFunc(r.ctx, r.contextEnded)
		r.mu.Lock()
		r.unwatch = unwatch
		over := r.over()
		r.mu.Unlock()
		if over { // at once: end has not seen unwatch
			unwatch()
		}
	}
}

func (r *Request) expire(at time.Time) {
	had := at.Sub(r.began).Round(time.Microsecond)
	text := fmt.Sprintf("%v after it began", had)
	if had < 0 {
		text = fmt.Sprintf("by %v when the request began", -had)
	}
	r.end(PastDeadline, fmt.Errorf("%w: %s", ErrDeadline, text))
}

func (r *Request) contextEnded() {
	cause := context.Cause(r.ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		r.end(PastDeadline, fmt.Errorf("%w: %w", ErrDeadline, cause))
		return
	}
	r.Abort(cause)
}

// requestContext is a request as a context.Context.
type requestContext Request

func (r *Request) context() context.Context { return (*requestContext)(r) }

// Deadline implements context.Context.
func (c *requestContext) Deadline() (time.Time, bool) {
	if c.deadline == 0 {
		return time.Time{}, false
	}
	return time.Unix(0, c.deadline), true
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
	if key == (requestKey{}) {
		return (*Request)(c)
	}
	return c.ctx.Value(key)
}

// requestKey is what contexts keep the request under that they were made of.
type requestKey struct{}

// untilDeadline is a context that ends at its request's deadline, whether or not the
// host says so: it may be stopped. A request's own waits for the host at a node, whose
// word decides how the request ends.
func untilDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	r, _ := ctx.Value(requestKey{}).(*Request)
	if r == nil || !r.bus.node || r.deadline == 0 {
		return ctx, func() {}
	}
	at := time.Unix(0, r.deadline)
	if own, limited := ctx.Deadline(); !limited || own.After(at) { // made apart from the request
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, at, fmt.Errorf("%w: %w", ErrDeadline, context.DeadlineExceeded))
}
