package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/host/child"
)

// close drains, and closes what open and run have made. If an error ended the run, requests get no
// time.
func (h *running) close(ctx context.Context, failed error) error {
	ended := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ended)) // a context that has ended is why close runs
	defer cancel(nil)
	go func() {
		select {
		case <-h.opts.Quit:
			cancel(ErrQuit)
		case <-ctx.Done():
		}
	}()
	h.mu.Lock()
	served := h.phase == PhaseReady
	h.phase = PhaseDraining
	h.mu.Unlock()
	if served && failed == nil {
		h.drainRequests(ctx)
	}
	stop := (*child.Child).Stop
	if served && failed == nil {
		stop = (*child.Child).Leave // the processes were told to leave
	}
	errs := []error{h.stopProcesses(ctx, stop), h.main.result(context.Cause(ended))}
	var stats bus.Stats
	if h.server != nil {
		stats = h.bus.Stats()
	}
	broken := h.closeBus()
	if served {
		h.summarise(stats, broken)
	}
	if errors.Is(context.Cause(ctx), ErrQuit) {
		errs = append(errs, ErrQuit)
	}
	return errors.Join(append(errs, broken)...)
}

// drainRequests waits, for the grace, until open requests and the main process have ended.
func (h *running) drainRequests(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.opts.Grace, fmt.Errorf("the grace of %v is over", h.opts.Grace))
	defer cancel()
	if live := h.bus.Stats().Live; live > 0 {
		fmt.Fprintf(h.opts.Outlet, "draining: %s, for up to %v\n", count(int64(live), "request"), h.opts.Grace)
	}
	h.server.Refuse()
	h.main.stop(ctx)
	if err := h.bus.Drain(ctx); err != nil {
		h.opts.Logger.Warn("requests did not end in time", slog.Any("error", err))
		h.bus.AbortAll(fmt.Errorf("the host is going to stop: %w", context.Cause(ctx)))
	}
	h.children.Refuse() // a process that leaves now gets no successor
	h.server.Drain()
}

// stopProcesses stops the stages one by one, each after the stages that feed it.
func (h *running) stopProcesses(ctx context.Context, stop func(*child.Child, context.Context) error) error {
	if h.children == nil {
		return nil
	}
	h.main.stop(canceledContext(ctx))
	var errs []error
	for _, s := range h.stages {
		errs = append(errs, h.stopReplicas(s, func(c *child.Child) error { return stop(c, ctx) })...)
	}
	return errors.Join(append(errs, h.children.Close(ctx))...)
}

// stopReplicas stops the processes of a stage at the same time, and waits for all.
func (h *running) stopReplicas(s *stage, stop func(*child.Child) error) []error {
	errs := make([]error, len(s.replicas))
	var stops sync.WaitGroup
	for i, r := range s.replicas {
		h.mu.Lock()
		c := r.child
		h.mu.Unlock()
		if c != nil {
			stops.Go(func() { errs[i] = stop(c) })
		}
	}
	stops.Wait()
	return errs
}

func canceledContext(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

// closeBus closes the sockets and the bus. The error says what was not clean.
func (h *running) closeBus() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	if h.health != nil {
		h.health.Close()
	}
	if h.web != nil {
		errs = append(errs, h.web.close())
	}
	if h.server != nil {
		for _, v := range h.server.Check() {
			errs = append(errs, fmt.Errorf("%w: arena: %v", bus.ErrNotClean, v))
		}
		errs = append(errs, h.server.Close(ctx))
	}
	if h.bus != nil {
		errs = append(errs, h.bus.Close(ctx))
	}
	return errors.Join(errs...)
}

// summarise prints one line about the run.
func (h *running) summarise(s bus.Stats, broken error) {
	if len(h.pipeline.Stages) == 0 {
		fmt.Fprintf(h.opts.Outlet, "done: %s left, %d swept; %s; ran %v\n",
			count(int64(s.Exchange.Entries), "value"), s.Exchange.Swept, storeSummary(broken), time.Since(h.began).Round(time.Millisecond))
		return
	}
	fmt.Fprintf(h.opts.Outlet, "done: %s; %s; ran %v\n", strings.Join([]string{
		count(s.Completed, "request") + " completed",
		fmt.Sprintf("%d failed", s.Failed), fmt.Sprintf("%d aborted", s.Aborted), fmt.Sprintf("%d past their deadline", s.Deadline),
		count(int64(h.restarts()), "restart"),
	}, ", "), storeSummary(broken), time.Since(h.began).Round(time.Millisecond))
}

// storeSummary describes the state of the store, given the error of closeBus. A socket or a connector
// that could not be closed does not matter to the store.
func storeSummary(broken error) string {
	switch {
	case errors.Is(broken, bus.ErrNotClean):
		return "store NOT clean"
	case errors.Is(broken, context.DeadlineExceeded):
		return "store not closed in time"
	}
	return "store clean"
}

func count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// restarts returns how often processes were started again.
func (h *running) restarts() int {
	total := 0
	for _, c := range h.childStatus() {
		total += c.Restarts
	}
	return total
}
