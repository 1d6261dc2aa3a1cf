package node_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestDeadlineErrorsAreAlike: the deadline of a request yields the same error whether it comes from
// the caller's context or from an option, for running requests and for requests that wait for a
// permit.
func TestDeadlineErrorsAreAlike(t *testing.T) {
	waits := func(t *bus.Task, _ *bus.Delivery) error { <-t.Context().Done(); return t.Context().Err() }
	h := serveAll(t, testbus.Linear(bus.StageSpec{Name: "slow", Handle: waits, MaxInflight: 8}), bus.Options{MaxRequests: 8})
	n := h.join(t, node.JoinOptions{})
	var all sync.WaitGroup
	for i := range 48 {
		all.Go(func() {
			ctx, opts := t.Context(), []bus.SubmitOption{bus.WithDeadline(time.Now().Add(50 * time.Millisecond))}
			if i%2 == 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, 50*time.Millisecond, errors.New("the patience of the caller"))
				defer cancel()
				opts = nil
			}
			r, err := n.Submit(ctx, "x", opts...)
			if err == nil {
				defer r.Close()
				_, err = r.Recv(ctx)
			}
			if !errors.Is(err, bus.ErrDeadline) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("it ended with %v", err)
			}
		})
	}
	all.Wait()
}
