package actors

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// Props is protoactor's description of an actor, under a name that code above
// this package can use without importing protoactor itself.
type Props = actor.Props

// Options configure a System. The zero value works.
type Options struct {
	// Logger receives what protoactor has to say, below warnings at debug level,
	// and panics of a user's actor at its end; nil discards it.
	Logger *slog.Logger
	// Spinner, if set, has a worker that has become idle look for work before it parks.
	Spinner *Spinner
}

// System is one protoactor system with its dispatcher and the supervisor
// actor under which all stages run. Its methods are safe for concurrent use.
type System struct {
	logger            *slog.Logger
	proto             *actor.ActorSystem
	dispatcher        *Dispatcher
	supervisor        *supervisor
	pid               *actor.PID    // the supervisor's
	supervisorMailbox *Mailbox      // the supervisor's, posted to directly: it outlives the address
	stopped           chan struct{} // closed by the supervisor when its last child is gone

	closing, shutdown sync.Once
}

// NewSystem starts a system with an idle supervisor.
func NewSystem(opts Options) *System {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &System{
		logger:     opts.Logger,
		proto:      actor.NewActorSystemWithConfig(protoConfig(opts.Logger)),
		dispatcher: NewDispatcher(opts.Spinner),
		stopped:    make(chan struct{}),
	}
	s.supervisor = newSupervisor(s.stopped)
	s.supervisorMailbox = NewMailbox(MailboxOptions{Bounded: neverBounded, OnDrop: reclaimLate})
	s.pid = s.proto.Root.Spawn(actor.PropsFromProducer(
		func() actor.Actor { return s.supervisor },
		actor.WithDispatcher(s.dispatcher),
		actor.WithMailbox(func() actor.Mailbox { return s.supervisorMailbox }),
	))
	return s
}

// Reclaim has the supervisor call part until that reports that there is no more, with the other
// messages that have come in between: part takes back what a process had that is gone, some at a
// time, and waits for nothing. When the system has closed, the caller does it itself.
func (s *System) Reclaim(part func() (more bool)) {
	s.supervisorMailbox.PostUserMessage(&reclaimParts{part: part, next: s.supervisorMailbox})
}

// neverBounded marks mailboxes whose messages are few and must always be taken.
func neverBounded(any) bool { return false }

// deadLetterInterval is for how long a goroutine of protoactor counts dead
// letters after the first: so long it may outlive Close.
const deadLetterInterval = 50 * time.Millisecond

func protoConfig(logger *slog.Logger) *actor.Config {
	return actor.Configure(
		actor.WithDeadLetterThrottleInterval(deadLetterInterval),
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return newLibraryLog(logger) }))
}

// Close stops every stage: what their mailboxes still hold is reported as
// dropped, and a handler that is running is waited for. When a handler does
// not come back before the context ends, Close returns the context's error with
// the names of the stages that are left, and the goroutine of that handler
// stays until it does. Close may be called again, and by several at once.
// Writers are closed on their own.
func (s *System) Close(ctx context.Context) error {
	s.closing.Do(func() { s.proto.Root.Stop(s.pid) })
	if err := await(ctx, s.stopped); err != nil {
		return fmt.Errorf("actors: close: %s: %w", unstopped(s.supervisor.names()), err)
	}
	s.shutdown.Do(func() {
		s.proto.Shutdown()
		s.dispatcher.Close()
	})
	return nil
}

// maxNamed bounds the stages that an error names.
const maxNamed = 8

func unstopped(names []string) string {
	switch n := len(names); {
	case n == 0:
		return "the supervisor is still at work"
	case n > maxNamed:
		return fmt.Sprintf("still running: %s and %d more", strings.Join(names[:maxNamed], ", "), n-maxNamed)
	}
	return "still running: " + strings.Join(names, ", ")
}

// await waits for stopped, or for the end of the context. If both have come, it
// returns nil.
func await(ctx context.Context, stopped <-chan struct{}) error {
	select {
	case <-stopped:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-stopped:
		return nil
	default:
		return context.Cause(ctx)
	}
}
