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
	// Logger receives the log records of protoactor, those below warning level at
	// debug level, and panics of a user's actor while it ends; nil discards them.
	Logger *slog.Logger
	// Spinner, if set, makes a worker that has become idle poll for work before it parks.
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
	supervisorMailbox *Mailbox      // posted to directly: it outlives the address
	stopped           chan struct{} // closed by the supervisor when its last child has ended

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

// Reclaim makes the supervisor call part until part reports false; the supervisor handles the
// messages that came meanwhile between two calls. part reclaims resources of a dead process, some
// at a time, and does not block. When the system has closed, Reclaim calls part itself.
func (s *System) Reclaim(part func() (more bool)) {
	s.supervisorMailbox.PostUserMessage(&reclaimParts{part: part, next: s.supervisorMailbox})
}

// neverBounded is the Bounded of mailboxes whose messages are few and must always be
// accepted.
func neverBounded(any) bool { return false }

// deadLetterInterval is for how long a goroutine of protoactor counts dead
// letters after the first. It may outlive Close by that time.
const deadLetterInterval = 50 * time.Millisecond

func protoConfig(logger *slog.Logger) *actor.Config {
	return actor.Configure(
		actor.WithDeadLetterThrottleInterval(deadLetterInterval),
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return newLibraryLog(logger) }))
}

// Close stops every stage: messages in their mailboxes are reported as dropped,
// and Close waits for running handlers. If a handler does not return before the
// context ends, Close returns the context's error with the names of the stages
// that still run, and the goroutine of that handler stays until it returns. Close
// may be called again, and concurrently. Writers are closed separately.
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

// await waits until stopped is closed or the context ends. If both have happened,
// it returns nil.
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
