package bus_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// hangingStage is a stage whose handler returns when until is closed, and not when the request is over.
func hangingStage(name string, until <-chan struct{}) bus.StageSpec {
	return bus.StageSpec{Name: name, Handle: func(*bus.Task, *bus.Delivery) error {
		<-until
		return nil
	}}
}

// TestHungHandlerIsReported: a handler that does not return is reported with stage, replica, request and the number of
// waiting deliveries, also when all requests are over. The errors of the requests name it.
func TestHungHandlerIsReported(t *testing.T) {
	until := make(chan struct{})
	defer close(until)
	reports := make(chan bus.Stall, 1000)
	b := testbus.Open(t, testbus.Linear(hangingStage("b", until)), bus.Options{
		StallTimeout: 20 * time.Millisecond,
		OnStall: func(all []bus.Stall) {
			for _, s := range all {
				reports <- s
			}
		},
	})
	first, err := b.Submit(t.Context(), "x", bus.WithDeadline(time.Now().Add(time.Second)))
	if err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return len(b.Running()) == 1 })
	for range 3 {
		r, err := b.Submit(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
	}
	testbus.Await(t, func() bool { return b.Stats().Stages[0].Queued == 3 })
	_, err = first.Recv(t.Context())
	if want := `stage "b" is at work; its handler at replica 0 has run for `; !errors.Is(err, bus.ErrDeadline) || !strings.Contains(err.Error(), want) {
		t.Errorf("the request ends with %v, want %q", err, want)
	}
	for s := range reports {
		h := s.Handler
		if h == nil || !h.Over || s.Deliveries != 3 {
			continue
		}
		if h.Stage != "b" || h.Replica != 0 || h.Request != first.ID() || h.For < 20*time.Millisecond || h.Process != "" {
			t.Errorf("the report says %+v", h)
		}
		break
	}
}

// TestWaitingHandlerIsNotRunning: a handler whose emission waits for its window is not listed as running.
func TestWaitingHandlerIsNotRunning(t *testing.T) {
	g := testbus.NewGate()
	b := testbus.Open(t, testbus.Windowed(g, bus.Edge{Window: 1}), bus.Options{})
	r := testbus.StreamOf(t, b)
	for range 3 {
		if err := r.Send(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	}
	<-g.Entered
	testbus.WaitForStall(t, b, "first->second", 1)
	testbus.Await(t, func() bool { return len(b.Running()) == 1 })
	if h := b.Running()[0]; h.Stage != "second" || h.Request != r.ID() || h.Over {
		t.Errorf("%+v runs, want the handler of second", h)
	}
	for range 3 {
		g.Leave <- struct{}{}
	}
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := testbus.Receive(t, r); err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return len(b.Running()) == 0 })
}

// TestStallLogHasOneLinePerPlace: the log has one line for all requests that wait in one place.
func TestStallLogHasOneLinePerPlace(t *testing.T) {
	const requests = 200
	until := make(chan struct{})
	var log logBuffer
	p := testbus.Linear(bus.Stage("a", testbus.Upper), hangingStage("b", until))
	p.Stages[0].MaxInflight = requests
	b := testbus.Open(t, p, bus.Options{
		MaxRequests: requests, StallTimeout: 100 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	all := make([]*bus.Request, requests)
	for i := range all {
		var err error
		if all[i], err = b.Submit(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	}
	testbus.Await(t, func() bool {
		text := strings.Join(log.lines(), "\n")
		return strings.Contains(text, "more_requests=") && strings.Contains(text, "a handler has run for")
	})
	handlers, waits := 0, 0
	longest := time.Duration(0)
	for _, s := range b.Stalls(0) {
		longest = max(longest, s.Waited)
	}
	for _, line := range log.lines() {
		switch {
		case strings.Contains(line, "a handler has run for") && strings.Contains(line, "stage=b"):
			handlers++
		case strings.Contains(line, "stalled"):
			waits++
		}
	}
	if most := int(longest/(100*time.Millisecond)) + 1; handlers > most || waits > most {
		t.Errorf("%d lines of the handler and %d of waits in %v:\n%s", handlers, waits, longest, strings.Join(log.lines(), "\n"))
	}
	close(until)
	for _, r := range all {
		r.Close()
	}
}

// TestUnservedStageIsNamed: deliveries for a stage without a process are reported, and the errors of requests name the
// stage.
func TestUnservedStageIsNamed(t *testing.T) {
	var log logBuffer
	b := testbus.Open(t, testbus.Remotes(testbus.Linear(bus.Stage("far", testbus.Upper))), bus.Options{
		StallTimeout: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	open, err := b.Submit(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	r, err := b.Submit(t.Context(), "x", bus.WithDeadline(time.Now().Add(time.Second)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = r.Recv(t.Context()); err == nil || !strings.Contains(err.Error(), `stage "far" keeps 1 delivery: no process serves it`) {
		t.Errorf("the request ends with %v", err)
	}
	testbus.Await(t, func() bool {
		text := strings.Join(log.lines(), "\n")
		return strings.Contains(text, `stage=far waited=`) && strings.Contains(text, `for="no process serves it"`)
	})
}
