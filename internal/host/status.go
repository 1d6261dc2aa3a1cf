package host

import (
	"context"
	"time"

	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/internal/host/child"
)

// Status is the answer to the call status.
type Status struct {
	host.Status
	Phase    Phase         `json:"phase"`
	HTTP     string        `json:"http"`
	Stages   []StageStatus `json:"stages"`   // stages that processes serve, in topological order
	Children []ChildStatus `json:"children"` // the processes that the host started
}

// StageStatus is one stage that processes serve.
type StageStatus struct {
	Stage    string `json:"stage"`
	Attach   bool   `json:"attach"`   // the host does not start its processes
	Expected int    `json:"expected"` // processes that the host starts
	Serving  int    `json:"serving"`  // processes that serve it
	GivenUp  bool   `json:"given_up"` // requests that need it fail
}

// ChildStatus describes a process that the host started, or its successor.
type ChildStatus struct {
	Name     string        `json:"name"` // "stage/number"
	Stage    string        `json:"stage"`
	PID      int           `json:"pid"`   // 0: no process runs
	State    string        `json:"state"` // starting, running, backoff, stopping, done, stopped, failed
	For      time.Duration `json:"for_ns"`
	Restarts int           `json:"restarts"`
	LastExit string        `json:"last_exit,omitempty"`
	Error    string        `json:"error,omitempty"` // why it was given up
	Lines    []string      `json:"lines,omitempty"` // the last lines that it printed, if it has no successor
}

// status takes a snapshot.
func (h *running) status() Status {
	s := Status{
		Status: h.server.Status(), HTTP: h.web.address(),
		Stages: make([]StageStatus, 0, len(h.stages)), Children: h.childStatus(),
	}
	h.mu.Lock()
	s.Phase = h.phase
	for _, st := range h.stages {
		s.Stages = append(s.Stages, StageStatus{Stage: st.ID, Attach: st.Attach, Expected: len(st.replicas), GivenUp: st.givenUp})
	}
	h.mu.Unlock()
	for i := range s.Stages {
		s.Stages[i].Serving = h.server.Serving(s.Stages[i].Stage)
	}
	return s
}

func (h *running) childStatus() []ChildStatus {
	all := []ChildStatus{}
	for _, st := range h.stages {
		for _, r := range st.replicas {
			h.mu.Lock()
			c := r.child
			h.mu.Unlock()
			if c == nil {
				continue
			}
			s := c.Status()
			one := ChildStatus{
				Name: s.Name, Stage: st.ID, PID: s.PID, State: s.State.String(),
				For: time.Since(s.Since), Restarts: s.Restarts,
			}
			if s.LastExit != nil {
				one.LastExit = s.LastExit.Cause()
			}
			if s.Err != nil {
				one.Error = s.Err.Error()
			}
			if ended := s.State == child.Failed || s.State == child.Done; ended && s.LastExit.PID != 0 { // else the lines are those of an earlier process
				one.Lines = lastOf(s.Lines)
			}
			all = append(all, one)
		}
	}
	return all
}

const (
	methodDrain   = "drain"
	methodRestart = "restart"
)

// methods are the host's calls besides those of the bus.
func (h *running) methods() map[string]func(context.Context, []byte) (any, error) {
	return map[string]func(context.Context, []byte) (any, error){
		"status": func(ctx context.Context, _ []byte) (any, error) {
			select {
			case <-h.opened: // the socket opens a moment earlier
				return h.status(), nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		},
		methodRestart: h.restart,
		methodDrain: func(context.Context, []byte) (any, error) { // onAnswered starts the drain
			return map[string]any{"draining": true, "grace_ns": h.opts.Grace}, nil
		},
	}
}
