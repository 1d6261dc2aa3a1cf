package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/terms"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
)

// submit opens a request. The client numbers it: what the client sends for it may come in
// the same packet. It begins when there is a place for it, and what is asked for it waits
// until then, in the queue of its source.
func (s *session) submit(m *wire.Submit) error {
	src := &source{sess: s, ports: s.srv.on.Inputs}
	if err := s.sources.open(src, m.Source); err != nil {
		return err
	}
	begin := *m
	return src.do(stepFunc(func(how pace) error {
		ctx := s.ctx
		if how == wait {
			withdrawable, withdrawn := src.withdrawable(s.ctx)
			defer withdrawn()
			ctx = withdrawable
		}
		req, err := s.begin(ctx, src, &begin, how)
		if errors.Is(err, bus.ErrCanceled) && how == try {
			return err
		}
		s.sources.opened()
		if err != nil {
			s.dropSource(src.id)
			src.refuse(err)
			return nil
		}
		src.begun(req, begin.Flags&wire.SubmitTell != 0)
		return nil
	}))
}

// withdrawable is a context that ends when the client withdraws its request.
func (src *source) withdrawable(ctx context.Context) (context.Context, func()) {
	ctx, withdraw := context.WithCancelCause(ctx)
	src.mu.Lock()
	src.cancel = withdraw
	gone := src.withdrawn
	src.mu.Unlock()
	if gone != nil {
		withdraw(gone)
	}
	return ctx, func() { withdraw(nil) }
}

// withdraw has the request not begin.
func (src *source) withdraw(cause error) {
	src.mu.Lock()
	if src.withdrawn == nil {
		src.withdrawn = cause
	}
	cancel := src.cancel
	src.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

// begin starts a request for the client. It waits for a place as long as the context lets
// it, unless it is only to try.
func (s *session) begin(ctx context.Context, src *source, m *wire.Submit, how pace) (*bus.Request, error) {
	if s.srv.refusing.Load() {
		return nil, fmt.Errorf("%w: the host takes no new requests, it is going to stop", bus.ErrClosed)
	}
	src.mu.Lock()
	withdrawn := src.withdrawn
	src.mu.Unlock()
	if err := errors.Join(withdrawn, context.Cause(ctx)); err != nil || how == waive {
		return nil, errors.Join(err, bus.ErrClosed)
	}
	if err := messages.ValidateTraceState(m.Trace.State); err != nil {
		return nil, fmt.Errorf("bus: submit: %w", err)
	}
	o := bus.Opening{ID: terms.RequestID(s.node, src.id), Until: m.Deadline, Trace: terms.TraceOf(m.Trace), Sink: src, Try: m.Flags&wire.SubmitTry != 0, Now: how == try}
	if m.Deadline != 0 && how != try { // the client may have given up by then, and has only so many
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, time.Unix(0, m.Deadline), bus.ErrDeadline)
		defer cancel()
	}
	if err := s.srv.floor.Place(ctx, o); err != nil {
		return nil, err
	}
	return s.srv.floor.Admit(s.ctx, o)
}

// begun lets what was asked for the request be done.
func (src *source) begun(req *bus.Request, tell bool) {
	src.mu.Lock()
	src.emitter = req.Input(src.sess.ctx)
	src.req = req
	over := src.over
	src.mu.Unlock()
	if tell {
		src.sess.queue(&wire.Submitted{Source: src.id, Request: uint64(req.ID())})
	}
	if over {
		src.Ended()
	}
}

// refuse tells the client why the request does not begin.
func (src *source) refuse(err error) {
	failed := terms.Failed(0, err)
	m := &wire.Over{Source: src.id, Outcome: wire.OutcomeRefused, Code: uint32(failed.Code), Text: failed.Text}
	if errors.Is(err, bus.ErrAborted) { // the client knows why
		m.Outcome, m.Code = wire.OutcomeAborted, 0
	}
	src.sess.queue(m)
}

// submitted finds the source of a request that the client has opened; nil: it is over.
func (s *session) submitted(id uint32) (*source, error) {
	src, err := s.source(id)
	if err == nil && src != nil && src.posting != nil {
		err = fmt.Errorf("%w: source %d is a task, not a request", wire.ErrProtocol, id)
	}
	return src, err
}

// opens is the request, or that of the task; nil: it has not begun.
func (src *source) opens() *bus.Request {
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.req
}

// Put implements bus.Carrier: it hands a result to the client.
func (src *source) Put(d *bus.Delivery, edge int) error {
	at, err := src.sess.locate(d)
	if err == nil && src.sess.deliver(src, d, nil, edge, at, false) == 0 {
		err = bus.ErrClosed // the client is gone
	}
	return err
}

// Ended implements bus.Sink.
func (src *source) Ended() {
	src.mu.Lock()
	req := src.req
	src.over = req == nil // begun comes back to it
	src.mu.Unlock()
	if req == nil {
		return
	}
	s := src.sess
	s.dropSource(src.id)
	s.queueFor(req, terms.Over(src.id, req.Outcome(), req.Err()))
}

// Describe implements bus.Sink.
func (src *source) Describe() string { return src.sess.Describe() }

// closeSend ends a request's inputs, behind those that were sent before.
func (s *session) closeSend(id uint32) error {
	src, err := s.submitted(id)
	if err != nil || src == nil {
		return err
	}
	return src.do(stepFunc(func(how pace) error {
		e, req := src.emits(how)
		if how == waive || req == nil { // the session has ended, or the request was refused
			return nil
		}
		if err := e.Control().Close(); errors.Is(err, bus.ErrCanceled) {
			return err
		}
		return nil // any other error means that the request is over
	}))
}

func (s *session) abortRequest(m *wire.AbortRequest) error {
	src, err := s.submitted(m.Source)
	if err != nil || src == nil {
		return err
	}
	var reason error
	if m.Text != "" {
		reason = errors.New(m.Text)
	}
	src.abort(reason)
	return nil
}

// abort ends the request, or has it not begin.
func (src *source) abort(reason error) {
	if req := src.opens(); req != nil {
		req.Abort(reason)
		return
	}
	src.withdraw(errors.Join(bus.ErrAborted, reason))
}

func (s *session) closeRequest(id uint32) error {
	src, err := s.submitted(id)
	if err == nil && src != nil {
		src.close(nil)
	}
	return err
}

// close ends the request, and gives up its results.
func (src *source) close(reason error) {
	src.abort(reason)
	if req := src.opens(); req != nil {
		req.Close() // it is over
	}
}
