package actors

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// Receiver is the work of a stage. The methods of one Receiver are never
// called concurrently with Receive, except Dropped. Failed and Dropped must not
// panic: the supervisor has no supervisor.
type Receiver interface {
	// Receive handles one message. A panic is a failure of the stage.
	Receive(message any)
	// Failed is called on the supervisor's goroutine, while the stage is
	// suspended, with the message whose handler panicked. The message is nil
	// if Restarted panicked, or the start of a user's actor. Failed disposes
	// of the message. The stage is then restarted, unless it is stopping.
	Failed(message any, cause *Panic)
	// Restarted is called on the stage's goroutine before the first message
	// after a restart. A panic is a failure of the stage.
	Restarted()
	// Dropped is called once for each message that will never be handled
	// because the stage stopped: on the supervisor's goroutine, or, when the
	// system has stopped, on the sender's.
	Dropped(message any, reason DropReason)
}

// StageOptions describe a stage. The zero value works.
type StageOptions struct {
	// Mailbox bounds the stage's queue; the system replaces its OnDrop.
	Mailbox MailboxOptions
	// Props, if set, describes a protoactor actor of the user behind the
	// receiver: it receives the messages that the receiver hands to Stage.Pass.
	// The mailbox and the dispatcher of the Props are ignored. Receiver
	// middleware of the Props sees the messages that reach the stage, before
	// the receiver does, and not those of Stage.Pass. A panic of the actor while
	// it ends is logged, and it ends all the same.
	Props *Props
}

// Stage is one supervised actor. Post is safe from any goroutine.
type Stage struct {
	name     string
	receiver Receiver
	mailbox  *Mailbox
	system   *System
	restarts atomic.Int64

	hasProps   bool          // there are Props
	startDelay time.Duration // before the last retry of a failed start; only the supervisor uses it

	// Of stages with Props; on the stage's goroutine.
	forwarding    forwarding // while a message is being received
	actorStopping bool       // the user's actor has been told to stop
}

// forwarding is how Pass reaches the user's actor while an envelope is received.
type forwarding struct {
	next     actor.ReceiverFunc
	context  actor.ReceiverContext
	envelope *actor.MessageEnvelope
}

// Spawn starts a stage under the supervisor. Names are unique among the stages
// that have not ended. The error is ErrStopped when the system closes, and
// a *Panic if the Props fail to make an actor. It panics if the mailbox options are invalid.
func (s *System) Spawn(name string, r Receiver, opts StageOptions) (*Stage, error) {
	st := &Stage{name: name, receiver: r, system: s, hasProps: opts.Props != nil}
	opts.Mailbox.OnDrop = st.dropped
	st.mailbox = NewMailbox(opts.Mailbox)
	m := &spawnStage{stage: st, props: st.props(opts.Props), reply: make(chan error, 1)}
	s.supervisorMailbox.PostUserMessage(m)
	if err := <-m.reply; err != nil {
		return nil, fmt.Errorf("actors: spawn stage %q: %w", name, err)
	}
	return st, nil
}

func (st *Stage) props(own *Props) *actor.Props {
	options := []actor.PropsOption{
		actor.WithDispatcher(st.system.dispatcher),
		actor.WithMailbox(func() actor.Mailbox { return st.mailbox }),
	}
	if own != nil {
		return own.Clone(append(options, actor.WithReceiverMiddleware(st.intercept))...)
	}
	return actor.PropsFromProducer(func() actor.Actor { return (*stageActor)(st) }, options...)
}

// intercept is a middleware that calls the receiver in place of the user's actor.
func (st *Stage) intercept(next actor.ReceiverFunc) actor.ReceiverFunc {
	return func(c actor.ReceiverContext, envelope *actor.MessageEnvelope) {
		defer rethrow()
		switch envelope.Message.(type) {
		case *actor.Started:
			st.actorStopping = false
			next(c, envelope)
			if st.restarts.Load() > 0 {
				st.forwarding = forwarding{next, c, envelope}
				defer st.clearForwarding()
				st.receiver.Restarted()
			}
		case *actor.Stopping:
			st.actorStopping = true
			st.notifyEnd(next, c, envelope)
		case *actor.Stopped, *actor.Restarting:
			st.notifyEnd(next, c, envelope)
		case *actor.Terminated: // of a child of the actor
			if st.actorStopping {
				st.notifyEnd(next, c, envelope)
				return
			}
			next(c, envelope)
		case *actor.PoisonPill:
			next(c, envelope)
		default:
			st.forwarding = forwarding{next, c, envelope}
			defer st.clearForwarding()
			st.receiver.Receive(envelope.Message)
		}
	}
}

func (st *Stage) clearForwarding() { st.forwarding = forwarding{} }

// notifyEnd passes a message about its end to the user's actor. If a panic
// escaped, the library would not finish the end, and the supervisor would wait for
// ever.
func (st *Stage) notifyEnd(next actor.ReceiverFunc, c actor.ReceiverContext, envelope *actor.MessageEnvelope) {
	defer func() {
		if r := recover(); r != nil {
			st.system.logger.Error("actor panicked at its end",
				slog.String("stage", st.name), slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
		}
	}()
	next(c, envelope)
}

// Pass forwards a message to the user's actor, with the sender of the message that
// is being received. The receiver of a stage with Props calls it in Receive or
// Restarted; elsewhere it does nothing.
func (st *Stage) Pass(message any) {
	if p := st.forwarding; p.next != nil {
		p.next(p.context, &actor.MessageEnvelope{Header: p.envelope.Header, Sender: p.envelope.Sender, Message: message})
	}
}

// dropped is the mailbox's OnDrop. It ignores panics: HandleFailure gets the same
// message with its cause.
func (st *Stage) dropped(message any, reason DropReason) {
	if reason == DropPanic {
		return
	}
	st.system.supervisorMailbox.PostUserMessage(&reclaim{stage: st, message: message, reason: reason})
}

// Post queues a message. It waits while the mailbox is full. A message to a stage
// that has stopped goes to Receiver.Dropped.
func (st *Stage) Post(message any) { st.mailbox.PostUserMessage(message) }

// PostAndRun is Post, but runs an idle stage on the caller's goroutine: see
// [Mailbox.PostAndRun].
func (st *Stage) PostAndRun(message any) { st.mailbox.PostAndRun(message) }

// Queue is Post for callers that hold locks: it runs no handler, see [Mailbox.Queue].
func (st *Stage) Queue(message any) Run { return st.mailbox.Queue(message) }

// Restarts counts the restarts after panics.
func (st *Stage) Restarts() int64 { return st.restarts.Load() }

// stageActor is the protoactor actor of a Stage. One value serves every
// incarnation: the Receiver discards the state that must not survive a panic.
type stageActor Stage

// Receive implements actor.Actor.
func (a *stageActor) Receive(c actor.Context) {
	defer rethrow()
	switch m := c.Message().(type) {
	case *actor.Started:
		if a.restarts.Load() > 0 {
			a.receiver.Restarted()
		}
	case *actor.Restarting, *actor.Stopping, *actor.Stopped:
	default:
		lockorder.AssertNone("an actor handles a message")
		a.receiver.Receive(m)
	}
}
