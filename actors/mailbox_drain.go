package actors

import (
	"runtime"

	"github.com/asynkron/protoactor-go/actor"
)

// drainBatch is how many messages the actor takes out of the queue under one
// lock.
const drainBatch = 64

// lendLimit is how many messages a sender that runs the actor handles before a
// worker takes over.
const lendLimit = 64

// process is what the dispatcher runs: it handles messages until none is left.
// Of one mailbox, one process runs at a time.
func (m *Mailbox) process() {
	for !m.drain() {
	}
}

// drain handles messages until none is left, and then returns true. After a
// handler's panic it returns false.
func (m *Mailbox) drain() (done bool) {
	defer func() {
		if !done {
			m.fail(recover())
		}
	}()
	limit := max(1, m.dispatcher.Throughput())
	if m.lent {
		limit = lendLimit
	}
	for n := 0; ; n++ {
		if n == limit {
			if m.lent {
				m.handOver()
				return true
			}
			n = 0
			runtime.Gosched()
		}
		if m.attention.Load()&^attendWaiters == 0 && m.next < len(m.batch) {
			m.invokeUser()
		} else if !m.step() {
			return true
		}
	}
}

// handOver ends the run of a sender that has done enough for others: a worker goes on, if
// there is more.
func (m *Mailbox) handOver() {
	m.mu.Lock()
	m.lent = false
	m.running = m.hasWorkLocked()
	more := m.running
	m.mu.Unlock()
	m.schedule(more)
}

// step does what is more urgent than the next message of the batch, and handles
// that message if nothing is. It returns false, and the mailbox no longer counts
// as running, when there was nothing to do at all.
func (m *Mailbox) step() bool {
	m.mu.Lock()
	if message, ok := m.system.pop(); ok {
		m.yielded = false
		m.attendLocked(attendSystem, m.system.len() > 0)
		m.mu.Unlock()
		m.invokeSystem(message)
		return true
	}
	if !m.hasWorkLocked() {
		return m.yieldAndUnlock()
	}
	m.yielded = false
	if m.next == len(m.batch) {
		m.batch = m.batch[:m.users.take(m.batch[:cap(m.batch)])]
		m.next = 0
	}
	m.mu.Unlock()
	m.invokeUser()
	return true
}

// yieldAndUnlock lets others run once, and then ends the run if they have
// brought nothing. Who was sent a message often answers at once; such an answer
// then finds the worker still up, which saves parking it and waking another. A worker
// that looks for work before it parks is up for longer than that.
func (m *Mailbox) yieldAndUnlock() (again bool) {
	again = !m.yielded && !m.lent && !m.spinner.enabled()
	m.yielded, m.lent = again, false
	m.running = again
	m.mu.Unlock()
	if again {
		runtime.Gosched()
	}
	return again
}

// invokeUser hands the next message of the batch to the actor.
func (m *Mailbox) invokeUser() {
	e := m.batch[m.next]
	m.batch[m.next] = entry{}
	m.next++
	m.countTaken(e)
	if m.attention.Load()&attendWaiters != 0 {
		m.admit()
	}
	m.current, m.phase = e.message, inUserMessage
	m.invoker.InvokeUserMessage(e.message)
	m.current, m.phase = nil, betweenMessages
}

func (m *Mailbox) admit() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.admitLocked()
}

// invokeSystem obeys a system message or hands it to the actor.
func (m *Mailbox) invokeSystem(message any) {
	switch message := message.(type) {
	case *actor.SuspendMailbox:
		m.suspend(true)
		return
	case *actor.ResumeMailbox:
		m.suspend(false)
		return
	case *actor.Stop:
		m.stop = true
		m.endIfLast(nil)
	case *actor.Terminated:
		if m.stop {
			m.endIfLast(message.Who)
		}
	case *actor.Restart:
		if m.stop && !m.reopen() {
			return
		}
	}
	m.current, m.phase = message, inSystemMessage
	m.invoker.InvokeSystemMessage(message)
	m.current, m.phase = nil, betweenMessages
}

func (m *Mailbox) suspend(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attendLocked(attendSuspended, on)
}

// endIfLast closes the mailbox if the actor, which has had its Stop, waits for
// no child but gone.
func (m *Mailbox) endIfLast(gone *actor.PID) {
	if m.life.hasChildrenBut(gone) {
		return
	}
	m.mu.Lock()
	m.ending = true
	m.discardAndUnlock()
}

// reopen forgets the Stop for an actor that is about to restart. It returns
// false if the actor has ended.
func (m *Mailbox) reopen() bool {
	if m.life.hasEnded() {
		return false
	}
	m.stop = false
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ending = false
	return true
}

// fail deals with a handler that did not return: reason is what it panicked
// with, or nil if it ended the goroutine.
func (m *Mailbox) fail(reason any) {
	message, was := m.current, m.phase
	m.current, m.phase = nil, betweenMessages
	if was == betweenMessages {
		// Not a handler but OnDrop or the dispatcher. Who goes on after that
		// loses messages in silence.
		panic(reason)
	}
	if was == inUserMessage {
		m.drop(message, DropPanic)
	}
	if reason == nil {
		// The goroutine is on its way out; another has to go on.
		defer m.dispatcher.Schedule(m.processFunc)
		reason = errHandlerExited
	}
	m.invoker.EscalateFailure(reason, message)
}

// life is what a mailbox knows about its actor. The zero value is the life of
// an invoker that is not an actor's context: it has no children and ends with
// its Stop.
type life struct {
	self    self
	process actor.Process
}

// self is the part of an actor's context that life is read from.
type self interface {
	Self() *actor.PID
	ActorSystem() *actor.ActorSystem
	Children() []*actor.PID
}

func lifeOf(invoker actor.MessageInvoker) life {
	context, ok := invoker.(self)
	if !ok {
		return life{}
	}
	l := life{self: context}
	l.process, _ = l.registered()
	return l
}

func (l life) registered() (actor.Process, bool) {
	return l.self.ActorSystem().ProcessRegistry.GetLocal(l.self.Self().Id)
}

// hasEnded tells whether the actor has left the process registry. The process
// is compared, not only the name: the name is free for another actor at once.
func (l life) hasEnded() bool {
	if l.self == nil {
		return true
	}
	process, ok := l.registered()
	return !ok || process != l.process
}

// hasChildrenBut tells whether the actor has a child other than gone. It must
// be called on the actor's goroutine.
func (l life) hasChildrenBut(gone *actor.PID) bool {
	if l.self == nil {
		return false
	}
	for _, child := range l.self.Children() {
		if gone == nil || !child.Equal(gone) {
			return true
		}
	}
	return false
}
