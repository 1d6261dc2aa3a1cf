package host

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// signal wakes awaitReady.
func (h *running) signal() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// awaitReady waits until each process has served its stage, and each stage is served. The child manager
// bounds the start of each process.
func (h *running) awaitReady(ctx context.Context) error {
	defer h.limitAttach()()
	began := time.Now()
	report := time.NewTicker(h.opts.StartReport)
	defer report.Stop()
	for {
		ready, err := h.checkReady()
		if ready || err != nil {
			return err
		}
		select {
		case <-h.changed:
		case <-report.C:
			h.reportStart(time.Since(began))
		case <-h.drain:
			return errInterrupted
		case <-ctx.Done():
			return errInterrupted
		}
	}
}

// reportStart prints what the start waits for.
func (h *running) reportStart(waited time.Duration) {
	h.mu.Lock()
	var all []string
	for _, s := range h.stages {
		if text := s.missing(); text != "" {
			all = append(all, fmt.Sprintf("%s (start_timeout %v)", text, s.startTimeout()))
		}
	}
	h.mu.Unlock()
	fmt.Fprintf(h.opts.Outlet, "starting for %v: %s\n", waited.Round(time.Second), strings.Join(all, "; "))
}

// limitAttach ends the start if no process attaches to a stage in time. The returned function stops the
// timers.
func (h *running) limitAttach() (stop func()) {
	var timers []*time.Timer
	for _, s := range h.stages {
		if s.Attach {
			timers = append(timers, time.AfterFunc(s.startTimeout(), func() { h.attachTimedOut(s) }))
		}
	}
	return func() {
		for _, t := range timers {
			t.Stop()
		}
	}
}

func (h *running) attachTimedOut(s *stage) {
	h.mu.Lock()
	if !s.served && h.startErr == nil {
		h.startErr = &StageError{Stage: s.ID, After: s.startTimeout(), At: h.socket}
	}
	fails := h.startErr != nil
	h.mu.Unlock()
	if fails {
		h.children.Refuse() // the run ends
	}
	h.signal()
}

// checkReady enters the phase ready when every stage is ready.
func (h *running) checkReady() (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.startErr != nil {
		return false, h.startErr
	}
	for _, s := range h.stages {
		if s.missing() != "" {
			return false, nil
		}
	}
	h.phase = PhaseReady
	return true, nil
}

// missing says what the stage waits for before it is first ready; empty: nothing. The host's mutex must
// be held.
func (s *stage) missing() string {
	for _, r := range s.replicas {
		if !r.ready {
			return fmt.Sprintf("stage %q: its process %s has not served it yet", s.ID, r.name())
		}
	}
	if s.Attach && !s.served {
		return fmt.Sprintf("stage %q: no process has attached yet", s.ID)
	}
	return ""
}

// unready lists the reasons why the host is not ready, for /readyz.
func (h *running) unready() []string {
	var why []string
	h.mu.Lock()
	if h.phase == PhaseDraining {
		why = append(why, "draining")
	}
	starting := h.phase == PhaseStarting
	for _, s := range h.stages {
		if text := s.missing(); starting && text != "" {
			why = append(why, text)
		}
	}
	h.mu.Unlock()
	for _, s := range h.stages {
		if !starting && h.server.Serving(s.ID) == 0 {
			why = append(why, fmt.Sprintf("stage %q: no process serves it", s.ID))
		}
	}
	return why
}
