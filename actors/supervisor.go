package actors

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// supervisor is the parent of every stage. As an actor, it restarts stages and
// reclaims messages one at a time, on its own goroutine, while the stages run.
type supervisor struct {
	stopped  chan<- struct{} // closed when the last stage has ended
	stopping bool

	mu     lockorder.Mutex[lockorder.Supervisor] // for readers other than the supervisor
	stages map[string]*Stage                     // by process id: those that have not ended
}

func newSupervisor(stopped chan<- struct{}) *supervisor {
	return &supervisor{stages: make(map[string]*Stage), stopped: stopped}
}

// Messages to the supervisor.
type (
	spawnStage struct {
		stage *Stage
		props *actor.Props
		reply chan error
	}
	// reclaim carries a message that will not be handled. The stage's receiver
	// releases its resources.
	reclaim struct {
		stage   *Stage
		message any
		reason  DropReason
	}
	// reclaimParts reclaims the resources of a dead process, a part at a time.
	reclaimParts struct {
		part func() (more bool)
		next *Mailbox // of the supervisor: the next part waits behind the messages that came meanwhile
	}
	// retryStart restarts a stage that failed to start.
	retryStart struct {
		parent actor.Supervisor
		child  *actor.PID
	}
)

// A user's actor that panics while it starts is restarted after a delay, which
// doubles each time up to a bound.
const (
	minStartDelay = 10 * time.Millisecond
	maxStartDelay = time.Second
)

// Receive implements actor.Actor.
func (s *supervisor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *spawnStage:
		m.reply <- s.spawn(c, m)
	case *reclaim:
		m.stage.receiver.Dropped(m.message, m.reason)
	case *reclaimParts:
		if m.part() {
			m.next.PostUserMessage(m)
		}
	case *retryStart:
		if !s.stopping {
			m.parent.RestartChildren(m.child)
		}
	case *actor.Terminated:
		s.mu.Lock()
		delete(s.stages, m.Who.Id)
		s.mu.Unlock()
	case *actor.Stopping:
		s.stopping = true
	case *actor.Stopped:
		close(s.stopped)
	}
}

// reclaimLate handles the messages that reach the supervisor after it has stopped:
// no stage runs beside it any more.
func reclaimLate(message any, _ DropReason) {
	switch m := message.(type) {
	case *spawnStage:
		m.reply <- ErrStopped
	case *reclaim:
		m.stage.receiver.Dropped(m.message, m.reason)
	case *reclaimParts:
		for m.part() {
		}
	}
}

// spawn makes the stage a child. It returns a panic of a user's Props as an error:
// protoactor makes the first actor of a process here, not on the stage's goroutine.
func (s *supervisor) spawn(c actor.Context, m *spawnStage) (err error) {
	if s.stopping {
		return ErrStopped // protoactor would accept the child, and wait for its end
	}
	// protoactor compares addresses, and a stage's is free a moment before the
	// supervisor receives its Terminated.
	if slices.Contains(s.names(), m.stage.name) {
		return errors.New("another stage has the name, and has not ended")
	}
	defer func() {
		if r := recover(); r != nil {
			err = &Panic{Value: r, Stack: debug.Stack()}
		}
	}()
	pid, err := c.SpawnNamed(m.props, m.stage.name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stages[pid.Id] = m.stage
	return nil
}

// names lists the stages that have not ended, sorted. Any goroutine may call it.
func (s *supervisor) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, st := range s.stages {
		names = append(names, st.name)
	}
	slices.Sort(names)
	return names
}

// HandleFailure implements actor.SupervisorStrategy; protoactor calls it on
// the supervisor's goroutine while the failed child's mailbox is suspended.
// The receiver disposes of the message first, so that a message to be handled
// again is queued before the child restarts.
//
// While the system closes, no stage is restarted: each has had its Stop by then,
// and a restart would cancel it. The stage is resumed, because a user's actor may
// have to serve its children until they have ended.
func (s *supervisor) HandleFailure(_ *actor.ActorSystem, parent actor.Supervisor, child *actor.PID, _ *actor.RestartStatistics, reason, message any) {
	st := s.stages[child.Id]
	at := userMessage(message)
	if st != nil {
		st.restarts.Add(1)
		st.receiver.Failed(at, asPanic(reason))
	}
	switch {
	case s.stopping:
		parent.ResumeChildren(child)
	case st == nil || at != nil || !st.hasProps:
		parent.RestartChildren(child)
	default: // at its start: the cause may last, so the retry is delayed
		again := &retryStart{parent: parent, child: child}
		time.AfterFunc(st.nextStartDelay(), func() { st.system.supervisorMailbox.PostUserMessage(again) })
	}
	if st != nil && at != nil {
		st.startDelay = 0
	}
}

// nextStartDelay is how long to wait before the next try to start the stage.
func (st *Stage) nextStartDelay() time.Duration {
	st.startDelay = min(max(2*st.startDelay, minStartDelay), maxStartDelay)
	return st.startDelay
}

// userMessage is the message without its envelope; nil: it is a message of the
// library.
func userMessage(message any) any {
	message = actor.UnwrapEnvelopeMessage(message)
	if _, ok := message.(actor.SystemMessage); ok {
		return nil
	}
	return message
}

// Panic is the panic of a handler, as an error.
type Panic struct {
	Value any
	Stack []byte // of the goroutine that panicked, when it was caught there
}

// Error implements error.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Unwrap returns the value of the panic if it is an error, else nil.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

func asPanic(reason any) *Panic {
	if p, ok := reason.(*Panic); ok {
		return p
	}
	return &Panic{Value: reason}
}

// rethrow, deferred around a handler, adds the stack to a panic: the supervisor
// runs on another goroutine and cannot read it.
func rethrow() {
	if r := recover(); r != nil {
		panic(&Panic{Value: r, Stack: debug.Stack()})
	}
}
