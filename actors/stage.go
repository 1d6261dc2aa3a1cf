package actors

import (
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
)

// Receiver is the work of a stage. The methods of one Receiver are never
// called concurrently with Receive, except Dropped.
type Receiver interface {
	// Receive handles one message. A panic is a failure of the stage.
	Receive(message any)
	// Failed is called on the supervisor's goroutine, while the stage stands
	// still, with the message whose handling panicked. It decides what becomes
	// of that message; the stage is then restarted.
	Failed(message any, cause *Panic)
	// Restarted is called on the stage's goroutine before the first message
	// after a restart.
	Restarted()
	// Dropped is told, on the supervisor's goroutine, of a message that will
	// never be handled because the stage stopped.
	Dropped(message any, reason DropReason)
}

// StageOptions describe a stage. The zero value works.
type StageOptions struct {
	// Mailbox bounds the stage's queue; its OnDrop is taken by the system.
	Mailbox MailboxOptions
	// Props, when set, is a protoactor actor of the user's own that stands
	// behind the receiver: what the receiver hands to Stage.Pass, it receives.
	// Mailbox and dispatcher are the system's; those of the Props are ignored.
	Props *Props
}

// Stage is one supervised actor. Post is safe from any goroutine.
type Stage struct {
	name     string
	receiver Receiver
	mailbox  *Mailbox
	system   *System
	pid      *actor.PID
	restarts atomic.Int64
	pass     func(message any) // to the user's actor; on the stage's goroutine
}

// Spawn starts a stage under the supervisor. Names are unique in a system.
func (s *System) Spawn(name string, r Receiver, opts StageOptions) (*Stage, error) {
	st := &Stage{name: name, receiver: r, system: s}
	opts.Mailbox.OnDrop = st.dropped
	st.mailbox = NewMailbox(opts.Mailbox)
	m := &spawnStage{stage: st, props: st.props(opts.Props), reply: make(chan error, 1)}
	s.reports.PostUserMessage(m)
	return st, <-m.reply
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
			next(c, envelope)
			st.setPass(next, c, envelope)
			if st.restarts.Load() > 0 {
				st.receiver.Restarted()
			}
		case *actor.Stopping, *actor.Stopped, *actor.Restarting, *actor.Terminated, *actor.PoisonPill:
			next(c, envelope)
		default:
			st.setPass(next, c, envelope)
			st.receiver.Receive(envelope.Message)
		}
	}
}

// setPass has Pass keep the sender of the message that is being received.
func (st *Stage) setPass(next actor.ReceiverFunc, c actor.ReceiverContext, envelope *actor.MessageEnvelope) {
	st.pass = func(message any) {
		next(c, &actor.MessageEnvelope{Header: envelope.Header, Sender: envelope.Sender, Message: message})
	}
}

// Pass hands a message on to the user's actor. It is for the receiver, from
// Receive or Restarted, of a stage with Props; elsewhere it does nothing.
func (st *Stage) Pass(message any) {
	if st.pass != nil {
		st.pass(message)
	}
}

// dropped is the mailbox's report. A panic is left to HandleFailure, which is
// told of the same message with its cause.
func (st *Stage) dropped(message any, reason DropReason) {
	if reason == DropPanic {
		return
	}
	st.system.reports.PostUserMessage(&reclaim{stage: st, message: message, reason: reason})
}

// Post queues a message. It waits while the mailbox is full, and reports a
// message that came too late through Receiver.Dropped.
func (st *Stage) Post(message any) { st.mailbox.PostUserMessage(message) }

// Len is the number of messages queued.
func (st *Stage) Len() int { return st.mailbox.Len() }

// Name is the name given to Spawn.
func (st *Stage) Name() string { return st.name }

// Restarts counts the restarts after panics.
func (st *Stage) Restarts() int64 { return st.restarts.Load() }

// stageActor is the protoactor face of a Stage. One value serves every
// incarnation: what must not survive a panic is for the Receiver to discard.
type stageActor Stage

// Receive implements actor.Actor.
func (a *stageActor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		if a.restarts.Load() > 0 {
			a.receive(nil)
		}
	case *actor.Restarting, *actor.Stopping, *actor.Stopped:
	default:
		a.receive(m)
	}
}

// receive hands a message, or the news of a restart, to the receiver.
func (a *stageActor) receive(message any) {
	defer rethrow()
	if message == nil {
		a.receiver.Restarted()
		return
	}
	a.receiver.Receive(message)
}
