package actors_test

import (
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/actors"
)

// countingDispatcher counts how often a mailbox asks for a worker.
type countingDispatcher struct{ scheduled atomic.Int32 }

func (d *countingDispatcher) Schedule(f func()) {
	d.scheduled.Add(1)
	go f()
}

func (d *countingDispatcher) Throughput() int { return 300 }

// lender is a mailbox whose actor handles ints: it posts that many messages to
// itself and, when it has handled as many, closes done.
func lender(t *testing.T) (m *actors.Mailbox, d *countingDispatcher, done chan int) {
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
			if n == 0 {
				done <- 1
			}
		case string:
			if left--; left == 0 {
				done <- 1
			}
		}
	}, actor.WithDispatcher(d), actor.WithMailbox(func() actor.Mailbox { return m })))
	t.Cleanup(func() { _ = system.Root.StopFuture(pid).Wait() })
	<-started
	m.PostUserMessage(0)
	<-done
	return m, d, done
}

// TestPostAndRunNeedsNoWorker: an idle actor runs on its sender's goroutine,
// and has handled the message when the call returns.
func TestPostAndRunNeedsNoWorker(t *testing.T) {
	m, d, done := lender(t)
	for range 1000 {
		before := d.scheduled.Load()
		m.PostAndRun(10)
		select {
		case <-done:
			if d.scheduled.Load() == before {
				return
			}
		default: // the worker before us was still up, and has it now
			<-done
		}
	}
	t.Error("no message was handled by its sender")
}

// TestPostAndRunHandsOver: who lends its goroutine serves others for a while,
// not for ever.
func TestPostAndRunHandsOver(t *testing.T) {
	m, d, done := lender(t)
	for range 1000 {
		before := d.scheduled.Load()
		m.PostAndRun(200)
		early := len(done) == 1
		<-done
		switch {
		case early && d.scheduled.Load() == before:
			t.Fatal("the sender handled all 201 messages")
		case d.scheduled.Load() == before+1:
			return
		}
	}
	t.Error("no sender ever ran the actor")
}
