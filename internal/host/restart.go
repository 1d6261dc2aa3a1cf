package host

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/host/child"
)

// Restarted is the answer to the call restart.
type Restarted struct {
	Process string        `json:"process"` // "stage/number"
	PID     int           `json:"pid"`     // of the new process
	Took    time.Duration `json:"took_ns"` // from the call until it served its stage
}

// restart ends a process of a stage, and returns when its successor serves the stage. It restarts one
// process: the verb restart calls it for each process of a stage in turn and stops at the first error,
// so that the other processes still serve.
func (h *running) restart(ctx context.Context, arguments []byte) (any, error) {
	var a struct {
		Process string `json:"process"`
	}
	if err := json.Unmarshal(arguments, &a); err != nil {
		return nil, fmt.Errorf("the arguments of restart: %w", err)
	}
	c, err := h.restartable(a.Process)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	tell := func() {
		h.server.Retire(func(pid int) bool {
			at, ours := h.children.Find(pid)
			return ours && at == c
		})
	}
	if err := c.Restart(ctx, tell); err != nil {
		return nil, fmt.Errorf("%s was not restarted: %w", a.Process, err)
	}
	return Restarted{Process: a.Process, PID: c.Status().PID, Took: time.Since(began)}, nil
}

// restartable returns the child with the given name.
func (h *running) restartable(name string) (*child.Child, error) {
	r := h.replica(name)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case r == nil || r.child == nil:
		return nil, fmt.Errorf("the host has started no process %q: status lists those that it has", name)
	case h.phase == PhaseDraining:
		return nil, fmt.Errorf("%s is not restarted: the host drains", name)
	}
	return r.child, nil
}
