package actors_test

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/actors"
)

// countingDispatcher counts how often a mailbox asks for a worker. working is done
// when all workers have ended.
type countingDispatcher struct {
	scheduled atomic.Int32
	working   sync.WaitGroup
}

func (d *countingDispatcher) Schedule(f func()) {
	d.scheduled.Add(1)
	d.working.Go(f)
}

func (d *countingDispatcher) Throughput() int { return 300 }

// inlineRunner is the mailbox of an idle actor. For an int the actor posts that many
// messages to itself, and sends on done when it has handled them.
func inlineRunner(t *testing.T) (m *actors.Mailbox, d *countingDispatcher, done chan int) {
	t.Helper()
	system := actor.NewActorSystemWithConfig(actor.Configure(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(slog.DiscardHandler)
	})))
	m = actors.NewMailbox(actors.MailboxOptions{Bounded: func(any) bool { return false }})
	d, done = new(countingDispatcher), make(chan int, 1)
	started := make(chan struct{})
	left := 0
	pid := system.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
		switch n := c.Message().(type) {
		case *actor.Started:
			close(started)
		case int:
			left = n
			for range n {
				m.PostUserMessage("one")
			}
		case string:
			if left--; left == 0 {
				done <- 1
			}
		}
	}, actor.WithDispatcher(d), actor.WithMailbox(func() actor.Mailbox { return m })))
	t.Cleanup(func() { _ = system.Root.StopFuture(pid).Wait() })
	<-started
	d.working.Wait() // until the actor is idle
	return m, d, done
}

// TestPostAndRunNeedsNoWorker: an idle actor runs on its sender's goroutine,
// and has handled the message when the call returns.
func TestPostAndRunNeedsNoWorker(t *testing.T) {
	m, d, done := inlineRunner(t)
	before := d.scheduled.Load()
	m.PostAndRun(10)
	if len(done) != 1 || d.scheduled.Load() != before {
		t.Errorf("handled: %v, workers asked for: %d", len(done) == 1, d.scheduled.Load()-before)
	}
}

// TestPostAndRunHandsOver: a sender in PostAndRun handles messages of other senders
// up to inlineLimit; then a worker goes on.
func TestPostAndRunHandsOver(t *testing.T) {
	m, d, done := inlineRunner(t)
	before := d.scheduled.Load()
	m.PostAndRun(200)
	<-done
	if n := d.scheduled.Load() - before; n != 1 {
		t.Errorf("workers asked for: %d", n)
	}
}

// TestQueueRunsNothing: a queued message has its place in the order at once, and is handled after
// RunInline or Start. A message that comes meanwhile needs no run of its own.
func TestQueueRunsNothing(t *testing.T) {
	for _, how := range []struct {
		name    string
		begin   func(actors.Run)
		workers int32
	}{{"inline", actors.Run.RunInline, 0}, {"start", actors.Run.Start, 1}} {
		t.Run(how.name, func(t *testing.T) {
			m, d, done := inlineRunner(t)
			before := d.scheduled.Load()
			run := m.Queue(0)
			if !run.Needed() {
				t.Fatal("the Run of an idle actor is not needed")
			}
			if second := m.Queue(1); second.Needed() {
				t.Error("a second Run is needed")
			}
			if n := m.Len(); n != 2 || len(done) != 0 {
				t.Errorf("%d messages wait before the run, want 2", n)
			}
			how.begin(run)
			<-done
			if n := d.scheduled.Load() - before; n != how.workers {
				t.Errorf("workers asked for: %d, want %d", n, how.workers)
			}
		})
	}
}
