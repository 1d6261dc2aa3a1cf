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
// panic: nobody is above the supervisor to deal with that.
type Receiver interface {
	// Receive handles one message. A panic is a failure of the stage.
	Receive(message any)
	// Failed is called on the supervisor's goroutine, while the stage stands
	// still, with the message whose handling panicked, or with nil if it was
	// Restarted that did, or the start of a user's actor. It decides what
	// becomes of the message; the stage is then restarted, unless it was told
	// to stop meanwhile.
	Failed(message any, cause *Panic)
	// Restarted is called on the stage's goroutine before the first message
	// after a restart. A panic is a failure of the stage.
	Restarted()
	// Dropped is told, once, of a message that will never be handled because
	// the stage stopped: on the supervisor's goroutine, or, when the system has
	// stopped, on that of who posts.
	Dropped(message any, reason DropReason)
}

// StageOptions describe a stage. The zero value works.
type StageOptions struct {
	// Mailbox bounds the stage's queue; its OnDrop is taken by the system.
	Mailbox MailboxOptions
	// Props, when set, is a protoactor actor of the user's own that stands
	// behind the receiver: what the receiver hands to Stage.Pass, it receives.
	// Mailbox and dispatcher are the system's; those of the Props are ignored.
	// Receiver middleware of the Props sees what reaches the stage, before the
	// receiver does, and not what is passed on. A panic of the actor at its own
	// end is logged, and changes nothing about it.
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
	startDelay time.Duration // before the last restart at the start; for the supervisor

	// Of stages with Props; on the stage's goroutine.
	forwarding    forwarding // while a message is being received
	actorStopping bool       // the user's actor has been told to stop
}

// forwarding is the way to the user's actor for what arrived in an envelope.
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
	place := []actor.PropsOption{
		actor.WithDispatcher(st.system.dispatcher),
		actor.WithMailbox(func() actor.Mailbox { return st.mailbox }),
	}
	if own != nil {
		return own.Clone(append(place, actor.WithReceiverMiddleware(st.intercept))...)
	}
	return actor.PropsFromProducer(func() actor.Actor { return (*stageActor)(st) }, place...)
}

// intercept puts the receiver in front of a user's actor.
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

// notifyEnd tells the user's actor of its end. Were a panic let through, the
// library would forget to go on with it, and the supervisor wait for ever.
func (st *Stage) notifyEnd(next actor.ReceiverFunc, c actor.ReceiverContext, envelope *actor.MessageEnvelope) {
	defer func() {
		if r := recover(); r != nil {
			st.system.logger.Error("actor panicked at its end",
				slog.String("stage", st.name), slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
		}
	}()
	next(c, envelope)
}

// Pass hands a message on to the user's actor, as if it came from the sender of
// the message that is being received. It is for the receiver, from Receive or
// Restarted, of a stage with Props; elsewhere it does nothing.
func (st *Stage) Pass(message any) {
	if p := st.forwarding; p.next != nil {
		p.next(p.context, &actor.MessageEnvelope{Header: p.envelope.Header, Sender: p.envelope.Sender, Message: message})
	}
}

// dropped is the mailbox's report. A panic is left to HandleFailure, which is
// told of the same message with its cause.
func (st *Stage) dropped(message any, reason DropReason) {
	if reason == DropPanic {
		return
	}
	st.system.supervisorMailbox.PostUserMessage(&reclaim{stage: st, message: message, reason: reason})
}

// Post queues a message. It waits while the mailbox is full, and reports a
// message that came too late through Receiver.Dropped.
func (st *Stage) Post(message any) { st.mailbox.PostUserMessage(message) }

// PostAndRun is Post, but has an idle stage run on the caller's goroutine, until it has
// nothing left to do: see [Mailbox.PostAndRun].
func (st *Stage) PostAndRun(message any) { st.mailbox.PostAndRun(message) }

// Queue is Post for callers that hold locks: it runs nothing, see [Mailbox.Queue].
func (st *Stage) Queue(message any) Run { return st.mailbox.Queue(message) }

// Restarts counts the restarts after panics.
func (st *Stage) Restarts() int64 { return st.restarts.Load() }

// stageActor is the protoactor face of a Stage. One value serves every
// incarnation: what must not survive a panic is for the Receiver to discard.
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
