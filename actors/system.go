package actors

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/asynkron/protoactor-go/actor"
)

// Props is protoactor's description of an actor, under a name that code above
// this package can use without importing protoactor itself.
type Props = actor.Props

// Options configure a System. The zero value works.
type Options struct {
	// Logger receives what protoactor has to say; nil discards it.
	Logger *slog.Logger
	// Dispatcher tunes the goroutines that run the actors.
	Dispatcher DispatcherOptions
}

// System is one protoactor system with its dispatcher and the supervisor
// actor under which all stages run. Its methods are safe for concurrent use.
type System struct {
	proto      *actor.ActorSystem
	dispatcher *Dispatcher
	supervisor *actor.PID
	reports    *Mailbox      // the supervisor's, posted to directly: it outlives the address
	stopped    chan struct{} // closed by the supervisor when its last child is gone
	closing    sync.Once
}

// NewSystem starts a system with an idle supervisor.
func NewSystem(opts Options) *System {
	s := &System{
		proto:      actor.NewActorSystemWithConfig(protoConfig(opts.Logger)),
		dispatcher: NewDispatcher(opts.Dispatcher),
		stopped:    make(chan struct{}),
	}
	s.reports = NewMailbox(MailboxOptions{Bounded: never, OnDrop: reclaimLate})
	s.supervisor = s.proto.Root.Spawn(actor.PropsFromProducer(
		func() actor.Actor { return newSupervisor(s.stopped) },
		actor.WithDispatcher(s.dispatcher),
		actor.WithMailbox(func() actor.Mailbox { return s.reports }),
	))
	return s
}

// never marks mailboxes whose messages are few and must always be taken.
func never(any) bool { return false }

func protoConfig(logger *slog.Logger) *actor.Config {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return actor.Configure(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		// protoactor reports each recovered panic at info level; the bus
		// reports failures itself, with more to say.
		return logger.With("lib", "protoactor")
	}))
}

// Close stops every stage: what their mailboxes still hold is reported as
// dropped, and a handler that is running is waited for. It returns early, with
// the context's error, when a handler does not come back; the goroutine of
// that handler stays until it does.
func (s *System) Close(ctx context.Context) error {
	s.closing.Do(func() { s.proto.Root.Stop(s.supervisor) })
	select {
	case <-s.stopped:
	case <-ctx.Done():
		return fmt.Errorf("actors: stop: a handler is still running: %w", context.Cause(ctx))
	}
	s.proto.Shutdown()
	s.dispatcher.Close()
	return nil
}
