package actors

import (
	"fmt"
	"runtime/debug"

	"github.com/asynkron/protoactor-go/actor"
)

// supervisor is the parent of every stage. Being an actor, it restarts stages
// and reclaims messages one at a time, on its own goroutine, while the stages
// go on.
type supervisor struct {
	stages  map[string]*Stage // by process id
	stopped chan<- struct{}
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
	// reclaim carries a message that nobody will handle. The stage's receiver
	// gives back what it holds.
	reclaim struct {
		stage   *Stage
		message any
		reason  DropReason
	}
)

// Receive implements actor.Actor.
func (s *supervisor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *spawnStage:
		m.reply <- s.spawn(c, m)
	case *reclaim:
		m.stage.receiver.Dropped(m.message, m.reason)
	case *actor.Terminated:
		delete(s.stages, m.Who.Id)
	case *actor.Stopped:
		close(s.stopped)
	}
}

// reclaimLate serves what reaches the supervisor when it has stopped already:
// nothing runs beside it any more.
func reclaimLate(message any, _ DropReason) {
	switch m := message.(type) {
	case *spawnStage:
		m.reply <- ErrStopped
	case *reclaim:
		m.stage.receiver.Dropped(m.message, m.reason)
	}
}

func (s *supervisor) spawn(c actor.Context, m *spawnStage) error {
	pid, err := c.SpawnNamed(m.props, m.stage.name)
	if err != nil {
		return fmt.Errorf("actors: spawn stage %q: %w", m.stage.name, err)
	}
	m.stage.pid = pid
	s.stages[pid.Id] = m.stage
	return nil
}

// HandleFailure implements actor.SupervisorStrategy; protoactor calls it on
// the supervisor's goroutine while the failed child's mailbox is suspended.
// The receiver decides first what becomes of the message, so that a message to
// be handled again is in place before the child starts anew.
func (s *supervisor) HandleFailure(_ *actor.ActorSystem, parent actor.Supervisor, child *actor.PID, _ *actor.RestartStatistics, reason, message any) {
	if st := s.stages[child.Id]; st != nil {
		st.restarts.Add(1)
		st.receiver.Failed(message, asPanic(reason))
	}
	parent.RestartChildren(child)
}

// Panic is what a handler panicked with, as an error.
type Panic struct {
	Value any
	Stack []byte // of the goroutine that panicked, when it was caught there
}

// Error implements error.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Unwrap gives the error that was panicked with, if it was one.
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

// rethrow, deferred around a handler, adds the stack to a panic on its way to
// the supervisor: by the time the supervisor sees it, the stack is gone.
func rethrow() {
	if r := recover(); r != nil {
		panic(&Panic{Value: r, Stack: debug.Stack()})
	}
}
