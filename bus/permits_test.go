package bus_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// logBuffer collects the log of a bus.
type logBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *logBuffer) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.all.String()), "\n")
}

// TestLogNamesRequestsThatHoldPermits: when requests wait for permits for longer than the stall timeout, and none is
// granted, the log names each request that holds one, with its age, once. The clock is that of synctest.
func TestLogNamesRequestsThatHoldPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		keeps := make(chan *bus.Kept, 1)
		handle := func(t *bus.Task, d *bus.Delivery) error {
			var in string
			if err := d.Decode(&in); err != nil || in != "keep" {
				return errors.Join(err, t.Forward(d))
			}
			keeps <- d.Keep()
			return nil
		}
		b, err := bus.Open(t.Context(), testbus.Linear(bus.StageSpec{Name: "m", Handle: handle}), bus.Options{
			Store:       shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Heap},
			MaxRequests: 2, StallTimeout: time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		kept, err := b.Submit(t.Context(), "keep")
		if err != nil {
			t.Fatal(err)
		}
		unread, err := b.Submit(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) //nolint:forbidigo // of the test's own time, as what follows
		if got := log.lines(); len(got) != 1 || got[0] != "" {
			t.Errorf("the log names requests, and no other waits: %q", got)
		}
		var waits sync.WaitGroup
		waits.Go(func() {
			r, err := b.Submit(t.Context(), "y")
			if err == nil {
				testbus.MustReceive(t, r, []string{"y"})
			} else {
				t.Error(err)
			}
		})
		time.Sleep(10 * time.Second) //nolint:forbidigo // of the test's own time
		got := log.lines()
		for _, want := range []string{
			fmt.Sprintf(`waiting=1 request=%v age=11`, kept.ID()), `stage \"m\" keeps 1 delivery`,
			fmt.Sprintf(`waiting=1 request=%v age=11`, unread.ID()), "the caller has results that it has not received",
		} {
			if strings.Count(strings.Join(got, "\n"), want) != 1 {
				t.Errorf("the log has %q not once: %q", want, got)
			}
		}
		if len(got) != 2 {
			t.Errorf("the log has %d lines, want 2: %q", len(got), got)
		}
		unread.Close()
		waits.Wait()
		if err := (<-keeps).Finish(nil); err != nil {
			t.Error(err)
		}
		kept.Close()
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestFullWindowFailsOnlyTheSend: an input that finds its window full, on an edge whose policy is Fail, is not
// sent, and the request goes on.
func TestFullWindowFailsOnlyTheSend(t *testing.T) {
	g := testbus.NewGate()
	p := testbus.Linear(g.Stage("m"))
	p.Edges = []bus.Edge{{To: "m", Window: 1, Policy: bus.Fail}}
	b := testbus.Open(t, p, bus.Options{})
	r := testbus.StreamOf(t, b)
	if err := r.Send(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := r.Send(t.Context(), "b"); !errors.Is(err, bus.ErrWindowFull) {
		t.Fatalf("send: %v", err)
	}
	g.Leave <- struct{}{}
	g.Leave <- struct{}{}
	testbus.Await(t, func() bool { return r.Send(t.Context(), "c", bus.Last()) == nil })
	testbus.MustReceive(t, r, []string{"a", "c"})
}
