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
const inlineLimit = 64

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
	if m.inline {
		limit = inlineLimit
	}
	for n := 0; ; n++ {
		if n == limit {
			if m.inline {
				m.handOver()
				return true
			}
			n = 0
			runtime.Gosched()
		}
		if m.attention.Load()&^attendSenders == 0 && m.next < len(m.batch) {
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
	m.inline = false
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
	again = !m.yielded && !m.inline && !m.spinner.enabled()
	m.yielded, m.inline = again, false
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
	if m.attention.Load()&attendSenders != 0 {
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
		m.stopReceived = true
		m.closeIfLast(nil)
	case *actor.Terminated:
		if m.stopReceived {
			m.closeIfLast(message.Who)
		}
	case *actor.Restart:
		if m.stopReceived && !m.reopen() {
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

// closeIfLast closes the mailbox if the actor, which has had its Stop, waits for
// no child but gone.
func (m *Mailbox) closeIfLast(gone *actor.PID) {
	if m.actorInfo.hasOtherChildren(gone) {
		return
	}
	m.mu.Lock()
	m.closed = true
	m.discardAndUnlock()
}

// reopen forgets the Stop for an actor that is about to restart. It returns
// false if the actor has ended.
func (m *Mailbox) reopen() bool {
	if m.actorInfo.hasEnded() {
		return false
	}
	m.stopReceived = false
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = false
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

// actorInfo is what a mailbox knows about its actor. The zero value is the life of
// an invoker that is not an actor's context: it has no children and ends with
// its Stop.
type actorInfo struct {
	context actorContext
	process actor.Process
}

// actorContext is the part of an actor's context that life is read from.
type actorContext interface {
	Self() *actor.PID
	ActorSystem() *actor.ActorSystem
	Children() []*actor.PID
}

func actorInfoOf(invoker actor.MessageInvoker) actorInfo {
	context, ok := invoker.(actorContext)
	if !ok {
		return actorInfo{}
	}
	l := actorInfo{context: context}
	l.process, _ = l.registered()
	return l
}

func (l actorInfo) registered() (actor.Process, bool) {
	return l.context.ActorSystem().ProcessRegistry.GetLocal(l.context.Self().Id)
}

// hasEnded tells whether the actor has left the process registry. The process
// is compared, not only the name: the name is free for another actor at once.
func (l actorInfo) hasEnded() bool {
	if l.context == nil {
		return true
	}
	process, ok := l.registered()
	return !ok || process != l.process
}

// hasOtherChildren tells whether the actor has a child other than gone. It must
// be called on the actor's goroutine.
func (l actorInfo) hasOtherChildren(gone *actor.PID) bool {
	if l.context == nil {
		return false
	}
	for _, child := range l.context.Children() {
		if gone == nil || !child.Equal(gone) {
			return true
		}
	}
	return false
}
