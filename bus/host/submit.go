package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
)

var errRefusing = fmt.Errorf("%w: the host takes no new requests, it is going to stop", bus.ErrClosed)

// submit opens a request. The client chooses its number, so that messages for it may follow in the same
// packet. The request begins when it has a permit, after the requests that the client submitted before;
// until then the steps for it wait in the queue of its source.
func (s *session) submit(m *wire.Submit) error {
	src := &source{sess: s, ports: s.srv.services.Inputs}
	if err := s.sources.addNumbered(src, m.Source); err != nil {
		return err
	}
	o := bus.RequestOptions{
		ID: hostnode.RequestID(s.node, src.id), Client: s.node, Deadline: hostnode.DeadlineOf(m.TimeLeft), Trace: hostnode.TraceOf(m.Trace), Sink: src,
	}
	atOnce, tell, placed := m.Flags&wire.SubmitTry != 0, m.Flags&wire.SubmitTell != 0, false
	first, err := s.submits.empty(), s.mayBegin(o)
	if err == nil && (first || atOnce) {
		err = s.srv.backend.AcquirePermit(s.ctx, bus.RequestOptions{Try: atOnce, Now: true})
		placed = err == nil
	}
	switch {
	case err != nil && !errors.Is(err, bus.ErrCanceled):
		src.refuse(err)
	case first && placed:
		s.beginRequest(src, o, tell)
	default:
		s.enqueueSubmit(src, o, tell, placed)
	}
	return nil
}

// mayBegin returns the reason why a request of the client may not begin, permit or not.
func (s *session) mayBegin(o bus.RequestOptions) error {
	if s.srv.refusing.Load() {
		return errRefusing
	}
	if err := context.Cause(s.ctx); err != nil {
		return errors.Join(err, bus.ErrClosed)
	}
	if err := messages.ValidateTraceState(o.Trace.State); err != nil {
		return fmt.Errorf("bus: submit: %w", err)
	}
	return nil
}

// beginRequest begins a request with a permit that was acquired for it. It reports false when the
// request was refused: the permit is given back.
func (s *session) beginRequest(src *source, o bus.RequestOptions, tell bool) bool {
	err := s.mayBegin(o) // the state may have changed while the request waited
	if err != nil {
		s.srv.services.Permits.Give()
	}
	var req *bus.Request
	if err == nil {
		req, err = s.srv.backend.Admit(s.ctx, o)
	}
	if err == nil && s.srv.refusing.Load() { // Refuse may not have seen the request
		err = errRefusing
		req.Control().End(bus.Aborted, err)
	}
	if err != nil {
		src.refuse(err)
		return false
	}
	s.sources.openingDone()
	src.started(req, tell)
	return true
}

// started lets the steps for the request run. A request that was withdrawn while it began ends.
func (src *source) started(req *bus.Request, tell bool) {
	if tell { // before Ended finds the request: no message may follow Over
		src.sess.queue(&wire.Submitted{Source: src.id, Request: uint64(req.ID())})
	}
	src.mu.Lock()
	src.emitter = req.Input(src.sess.ctx)
	src.req = req
	over, withdrawn := src.endedEarly, src.withdrawn
	src.mu.Unlock()
	if withdrawn != nil {
		req.Control().End(outcomeOf(withdrawn), withdrawn)
	}
	if over {
		src.Ended()
	}
}

// refuse ends a source whose request does not begin, and tells the client the reason.
func (src *source) refuse(err error) {
	s := src.sess
	s.sources.openingDone()
	s.dropSource(src.id)
	failed := hostnode.Failed(0, err)
	m := &wire.Over{Source: src.id, Outcome: wire.OutcomeRefused, Code: uint32(failed.Code), Text: failed.Text}
	if errors.Is(err, bus.ErrAborted) { // the client aborted it
		m.Outcome, m.Code = wire.OutcomeAborted, 0
	}
	s.queue(m)
}

// submitted returns the source of a request that the client submitted; nil: the request has ended.
func (s *session) submitted(id uint32) (*source, error) {
	src, err := s.source(id)
	if err == nil && src != nil && src.task != nil {
		err = fmt.Errorf("%w: source %d is a task, not a request", wire.ErrProtocol, id)
	}
	return src, err
}

// request returns the request of the source or of its task; nil: it has not begun.
func (src *source) request() *bus.Request {
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.req
}

// Put implements bus.RemoteSink: it sends a result to the client.
func (src *source) Put(d *bus.Delivery, edge int) error {
	at, err := src.sess.locate(d)
	if err == nil && src.sess.deliver(src, d, nil, edge, at, false) == 0 {
		err = bus.ErrNotTaken // the client has departed, and its requests are aborted
	}
	return err
}

// Returns implements bus.RemoteSink. The host counts the readers of a payload that it forwards.
func (src *source) Returns(int, uint64) bool { return true }

// Ended implements bus.Sink.
func (src *source) Ended() {
	src.mu.Lock()
	req := src.req
	src.endedEarly = req == nil // started calls Ended again
	src.mu.Unlock()
	if req == nil {
		return
	}
	s := src.sess
	s.dropSource(src.id)
	s.queueFor(req, hostnode.Over(src.id, req.Outcome(), req.Err()))
}

// Describe implements bus.Sink.
func (src *source) Describe() string { return src.sess.Describe() }

// closeSend closes a request's inputs, after the messages that were sent before.
func (s *session) closeSend(id uint32) error {
	src, err := s.submitted(id)
	if err != nil || src == nil {
		return err
	}
	return src.do(orSkip(func() error {
		if _, req := src.emitterFor(mayWait); req != nil { // else the request was refused
			_ = req.CloseSend(s.ctx) // an error says that the request has ended
		}
		return nil
	}))
}

func (s *session) abortRequest(m *wire.AbortRequest) error {
	src, err := s.submitted(m.Source)
	if err != nil || src == nil {
		return err
	}
	cause := bus.ErrAborted
	if m.Code == wire.CodeOver {
		cause = bus.ErrDeadline
	}
	if m.Text != "" {
		cause = fmt.Errorf("%w: %s", cause, m.Text)
	}
	src.endRequest(cause)
	return nil
}

// endRequest ends the request, or keeps it from beginning.
func (src *source) endRequest(cause error) {
	if req := src.withdraw(cause); req != nil {
		req.Control().End(outcomeOf(cause), cause)
	}
}

// outcomeOf returns the outcome of a request that its client ended.
func outcomeOf(cause error) bus.Outcome {
	if errors.Is(cause, bus.ErrDeadline) {
		return bus.PastDeadline
	}
	return bus.Aborted
}

// withdraw keeps the request from beginning. It returns the request if it has begun. A request that is
// just beginning is ended by started.
func (src *source) withdraw(cause error) *bus.Request {
	src.mu.Lock()
	req := src.req
	if req == nil && src.withdrawn == nil {
		src.withdrawn = cause
	}
	src.mu.Unlock()
	if req != nil {
		return req
	}
	if w := src.sess.submits.remove(src); w != nil {
		w.reject(cause)
	}
	return nil
}

func (s *session) closeRequest(id uint32) error {
	src, err := s.submitted(id)
	if err == nil && src != nil {
		src.close(nil)
	}
	return err
}

// close ends the request, and drops its results.
func (src *source) close(reason error) {
	cause := bus.ErrAborted
	if reason != nil {
		cause = fmt.Errorf("%w: %w", cause, reason)
	}
	src.endRequest(cause)
	if req := src.request(); req != nil {
		req.Close() // the request has ended
	}
}
