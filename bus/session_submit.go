package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// submit answers submit, behind which cancel may come.
func (s *session) submit(m *wire.Submit) error {
	ctx, cancel := context.WithCancelCause(s.ctx)
	s.mu.Lock()
	again := s.submits[m.Token] != nil
	if !again {
		s.submits[m.Token] = cancel
	}
	s.mu.Unlock()
	if again {
		cancel(nil)
		return fmt.Errorf("%w: question %d is open already", wire.ErrProtocol, m.Token)
	}
	return s.ask(m.Token, func() error {
		req, err := s.begin(ctx, m)
		// First: the client may use the token again when it has its answer.
		s.mu.Lock()
		delete(s.submits, m.Token)
		s.mu.Unlock()
		cancel(nil)
		if err != nil {
			return err
		}
		return s.begun(m.Token, req)
	})
}

// begin starts a request for the client. It waits for a place as long as the context
// lets it.
func (s *session) begin(ctx context.Context, m *wire.Submit) (*Request, error) {
	if s.srv.refusing.Load() {
		return nil, fmt.Errorf("%w: the host takes no new requests, it is going to stop", ErrClosed)
	}
	opts := []SubmitOption{func(o *requestOptions) { o.caller = s }}
	if m.Deadline != 0 {
		opts = append(opts, WithDeadline(time.Unix(0, m.Deadline)))
	}
	if m.Trace != (wire.Trace{}) {
		opts = append(opts, WithTrace(traceOf(m.Trace)))
	}
	if m.Flags&wire.SubmitTry != 0 {
		return s.srv.bus.tryStream(s.ctx, opts...)
	}
	return s.stream(ctx, m.Deadline, opts)
}

// begun tells the client of a request that was started for it.
func (s *session) begun(token uint32, req *Request) error {
	src := &source{emitter: Emitter{out: &req.inputs}, req: req}
	if !s.newSource(src) {
		req.Abort(context.Cause(s.ctx))
		req.Close()
		return ErrClosed
	}
	s.queue(&wire.Submitted{Token: token, Source: src.id, Request: uint64(req.id)})
	s.wg.Go(func() { s.results(src) })
	return nil
}

// stream waits for a place, until the context ends or the deadline: whoever asked may
// have given up then, and a client has only so many questions.
func (s *session) stream(ctx context.Context, deadline int64, opts []SubmitOption) (*Request, error) {
	b := s.srv.bus
	if deadline != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, time.Unix(0, deadline), ErrDeadline)
		defer cancel()
	}
	place, err := b.place(ctx)
	if err != nil {
		return nil, err
	}
	return b.admit(s.ctx, place, opts)
}

// results hands the results of a request to the client as they come.
func (s *session) results(src *source) {
	err := s.passResults(src)
	if s.ctx.Err() != nil { // takeBack closes the request
		return
	}
	outcome, cause := src.req.Outcome(), src.req.Err()
	if err != nil {
		src.req.Close()           // what is unread is of no use
		if outcome == Completed { // and a result is missing
			outcome, cause = Failed, err
		}
	}
	s.dropSource(src.id)
	s.queue(overMessage(src.id, outcome, cause))
}

// passResults hands over results until there are no more.
func (s *session) passResults(src *source) error {
	for {
		d, err := src.req.Recv(s.ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		at, err := s.locate(d)
		if err != nil {
			_ = d.Finish(nil)
			return err
		}
		s.deliver(src, d, nil, slices.Index(s.srv.bus.graph.results, d.flow.edge), at, false)
	}
}

// request finds the source of a request that the client submitted; nil: it is
// over.
func (s *session) request(id uint32) (*source, error) {
	src, err := s.source(id)
	if err == nil && src != nil && src.req == nil {
		err = fmt.Errorf("%w: source %d is a task, not a request", wire.ErrProtocol, id)
	}
	return src, err
}

// closeSend ends a request's inputs, behind those that were sent before.
func (s *session) closeSend(id uint32) error {
	src, err := s.request(id)
	if err != nil || src == nil {
		return err
	}
	return src.do(src.once(Emitter.close, func(error) {})) // an error means that the request is over
}

func (s *session) abortRequest(m *wire.AbortRequest) error {
	src, err := s.request(m.Source)
	if err == nil && src != nil {
		var reason error
		if m.Text != "" {
			reason = errors.New(m.Text)
		}
		src.req.Abort(reason)
	}
	return err
}

func (s *session) closeRequest(id uint32) error {
	src, err := s.request(id)
	if err == nil && src != nil {
		src.req.Close()
	}
	return err
}
