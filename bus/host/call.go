package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
)

// maxReplyPiece bounds the bytes of one reply.
const maxReplyPiece = 60_000

// handleCall answers a call. A client's own figures are recorded at once, since their order counts; any
// other call is answered on a goroutine, since it may take a while.
func (s *session) handleCall(m *wire.Call) error {
	token, method, arguments := m.Token, m.Method, append([]byte(nil), m.Arguments...)
	if method != hostnode.MethodTensors {
		return s.answerAsync(token, func() error { return s.call(token, method, arguments) })
	}
	err := s.srv.services.TensorFigures.Set(s, arguments)
	if err == nil {
		err = s.reply(token, struct{}{})
	}
	if err != nil {
		s.queue(hostnode.Failed(token, err))
	}
	return nil
}

// call answers a question about the bus.
func (s *session) call(token uint32, method string, arguments []byte) error {
	answer, err := s.srv.method(method)
	if err != nil {
		return err
	}
	v, err := answer(s.ctx, arguments)
	if err != nil {
		return err
	}
	err = s.reply(token, v)
	if f := s.srv.opts.Answered; err == nil && f != nil && s.srv.opts.Methods[method] != nil {
		f(method)
	}
	return err
}

// reply sends the answer to a call, as JSON.
func (s *session) reply(token uint32, v any) error {
	var encoded bytes.Buffer
	enc := json.NewEncoder(&encoded)
	enc.SetEscapeHTML(false) // names of edges contain an arrow
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode the answer of a call: %w", err)
	}
	b := bytes.TrimSuffix(encoded.Bytes(), []byte("\n"))
	for len(b) > maxReplyPiece {
		s.queue(&wire.Reply{Token: token, Flags: wire.ReplyMore, Piece: b[:maxReplyPiece]})
		b = b[maxReplyPiece:]
	}
	s.queue(&wire.Reply{Token: token, Piece: b})
	return nil
}

// Status is what a server reports about its bus.
type Status struct {
	Bus       string               `json:"bus"`
	PID       int                  `json:"pid"` // of the hosting process
	Socket    string               `json:"socket"`
	Epoch     uint64               `json:"epoch"`
	Age       time.Duration        `json:"age_ns"`
	Stats     bus.Stats            `json:"stats"`
	Processes []ProcessStats       `json:"processes"`
	Lanes     []LaneStatus         `json:"lanes"`
	Requests  []bus.RequestStatus  `json:"requests"`
	Handlers  []bus.RunningHandler `json:"handlers"` // handlers that have not returned
}

// Status takes a snapshot.
func (s *Server) Status() Status {
	u := s.inFlight(reportLease) // first: it updates the figures of the edges
	st := Status{
		Bus: s.services.Name, PID: os.Getpid(), Socket: s.Addr(), Epoch: s.epoch, Age: time.Since(s.services.Opened), Stats: s.backend.Stats(), Processes: s.Processes(), Lanes: u.lanes(s.live()),
		Requests: s.backend.Statuses(), Handlers: append([]bus.RunningHandler{}, s.backend.Running()...),
	}
	u.add(&st)
	return st
}

// CheckReport lists the broken invariants of a bus's memory.
type CheckReport struct {
	Violations []string      `json:"violations"`
	Took       time.Duration `json:"took_ns"`
}

type callMethod = func(ctx context.Context, arguments []byte) (any, error)

// method returns the function that answers a call.
func (s *Server) method(name string) (callMethod, error) {
	if f := s.opts.Methods[name]; f != nil {
		return f, nil
	}
	f, ok := map[string]callMethod{
		"status": func(context.Context, []byte) (any, error) { return s.Status(), nil },
		"stats":  func(context.Context, []byte) (any, error) { return s.backend.Stats(), nil },
		"stalls": func(context.Context, []byte) (any, error) {
			u := s.inFlight(reportLease)
			return append([]bus.Stall{}, slices.Concat(s.backend.Stalls(0), u.stalls(s.backend, 0), s.exchangeStalls(0), u.silentStalls())...), nil
		},
		"check":  func(context.Context, []byte) (any, error) { return s.checkAll() },
		"leases": func(context.Context, []byte) (any, error) { return s.leases(), nil },
		"abort":  func(_ context.Context, arguments []byte) (any, error) { return s.abort(arguments) },
	}[name]
	if !ok {
		return nil, hostnode.Unknown(fmt.Sprintf("there is no method %q", name))
	}
	return f, nil
}

// checkAll checks the store, while it is in use, and the accounts of the attached processes.
func (s *Server) checkAll() (CheckReport, error) {
	began := time.Now()
	report := CheckReport{Violations: []string{}}
	found, err := s.backend.Check()
	for _, v := range append(found, s.Check()...) {
		report.Violations = append(report.Violations, v.String())
	}
	report.Took = time.Since(began)
	return report, err
}

// abort ends a request by its number.
func (s *Server) abort(arguments []byte) (any, error) {
	var a struct {
		Request messages.RequestID `json:"request"`
		Reason  string             `json:"reason"`
	}
	if err := json.Unmarshal(arguments, &a); err != nil {
		return nil, fmt.Errorf("%w: arguments of abort: %w", bus.ErrPayload, err)
	}
	if a.Reason == "" {
		a.Reason = "aborted by hand"
	}
	if !s.backend.Abort(a.Request, errors.New(a.Reason)) {
		return nil, hostnode.Unknown(fmt.Sprintf("request %v is not alive", a.Request))
	}
	return map[string]any{"aborted": a.Request}, nil
}
