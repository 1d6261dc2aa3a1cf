package bus_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestDeadlineErrorsAreAlike: by each call, and for each way to set the deadline, the error of a request past its
// deadline is ErrDeadline and context.DeadlineExceeded.
func TestDeadlineErrorsAreAlike(t *testing.T) {
	waits := func(t *bus.Task, _ *bus.Delivery) error { <-t.Context().Done(); return t.Context().Err() }
	calls := map[string]func(context.Context, *bus.Request) error{
		"Recv": func(ctx context.Context, r *bus.Request) error { _, err := r.Recv(ctx); return err },
		"Wait": func(ctx context.Context, r *bus.Request) error { return r.Wait(ctx) },
		"Results": func(ctx context.Context, r *bus.Request) (last error) {
			for _, err := range r.Results(ctx) {
				last = err
			}
			return last
		},
	}
	deadlines := map[string]func() (context.Context, context.CancelFunc, []bus.SubmitOption){
		"of the context": func() (context.Context, context.CancelFunc, []bus.SubmitOption) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			return ctx, cancel, nil
		},
		"of an option": func() (context.Context, context.CancelFunc, []bus.SubmitOption) {
			return t.Context(), func() {}, []bus.SubmitOption{bus.WithDeadline(time.Now().Add(5 * time.Millisecond))}
		},
		"of a context with a cause": func() (context.Context, context.CancelFunc, []bus.SubmitOption) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Millisecond, errors.New("the patience of the caller"))
			return ctx, cancel, nil
		},
	}
	for call, f := range calls {
		for deadline, set := range deadlines {
			t.Run(call+" "+deadline, func(t *testing.T) {
				b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "slow", Handle: waits, MaxInflight: 64}), bus.Options{MaxRequests: 64})
				var all sync.WaitGroup
				for range 32 {
					all.Go(func() {
						ctx, cancel, opts := set()
						defer cancel()
						r, err := b.Submit(ctx, "x", opts...)
						if err == nil {
							defer r.Close()
							err = f(ctx, r)
						}
						if !errors.Is(err, bus.ErrDeadline) || !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("it ended with %v", err)
						}
					})
				}
				all.Wait()
			})
		}
	}
}

// TestDeadlineBeforeARequestBegins: the error is the same if the request has no permit yet.
func TestDeadlineBeforeARequestBegins(t *testing.T) {
	g := testbus.NewGate()
	b := testbus.Open(t, testbus.Linear(g.Stage("slow")), bus.Options{MaxRequests: 1})
	first, err := b.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	late, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("the patience of the caller"))
	defer cancel()
	over, cancelOver := context.WithDeadline(t.Context(), time.Now())
	defer cancelOver()
	for _, ctx := range []context.Context{late, over} {
		if _, err := b.Submit(ctx, "x"); !errors.Is(err, bus.ErrDeadline) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ended with %v", err)
		}
	}
}
