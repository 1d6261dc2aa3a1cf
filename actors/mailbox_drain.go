package actors

import (
	"runtime"

	"github.com/asynkron/protoactor-go/actor"
)

// drainBatch is how many messages the actor takes out of the queue at a time.
const drainBatch = 64

// inlineLimit is how many messages a sender in RunInline handles before a worker
// takes over.
const inlineLimit = 64

// process handles messages until none is left. The dispatcher runs it, or a sender
// in RunInline; at most one process of a mailbox runs at a time.
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

// handOver ends a run in RunInline that has handled inlineLimit messages: if more wait, a
// worker goes on.
func (m *Mailbox) handOver() {
	m.mu.Lock()
	m.inline = false
	m.running = m.hasWorkLocked()
	more := m.running
	m.mu.Unlock()
	m.schedule(more)
}

// step handles a system message if one waits, else the next user message. If
// neither waits, it returns false, and the mailbox no longer counts as running.
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

// yieldAndUnlock yields the processor once, and ends the run if no message has
// arrived by then. The receiver of a message often answers at once; such an answer
// finds the worker still running, which saves parking it and waking another. With an
// enabled spinner it does not yield: the worker polls before it parks.
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

// invokeSystem carries out a system message or hands it to the actor.
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

// closeIfLast closes the mailbox if the actor, which has had its Stop, has no
// child other than gone.
func (m *Mailbox) closeIfLast(gone *actor.PID) {
	if m.actorInfo.hasOtherChildren(gone) {
		return
	}
	m.mu.Lock()
	m.closed = true
	m.discardAndUnlock()
}

// reopen undoes the Stop of an actor that is about to restart. It returns false if
// the actor has ended.
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

// fail escalates the failure of a handler that did not return. reason is the value
// of its panic, or nil if it ended the goroutine.
func (m *Mailbox) fail(reason any) {
	message, was := m.current, m.phase
	m.current, m.phase = nil, betweenMessages
	if was == betweenMessages {
		// OnDrop or the dispatcher panicked, not a handler. A mailbox that went
		// on would lose messages without a report.
		panic(reason)
	}
	if was == inUserMessage {
		m.drop(message, DropPanic)
	}
	if reason == nil {
		// The goroutine exits; another has to go on.
		defer m.dispatcher.Schedule(m.processFunc)
		reason = errHandlerExited
	}
	m.invoker.EscalateFailure(reason, message)
}

// actorInfo reads the state of the mailbox's actor. The zero value belongs to an
// invoker that is not an actor's context: it has no children and ends with its
// Stop.
type actorInfo struct {
	context actorContext
	process actor.Process
}

// actorContext is the part of an actor's context that actorInfo reads.
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

// hasEnded reports whether the actor has left the process registry. It compares
// the process, not only the name: another actor may take the name at once.
func (l actorInfo) hasEnded() bool {
	if l.context == nil {
		return true
	}
	process, ok := l.registered()
	return !ok || process != l.process
}

// hasOtherChildren reports whether the actor has a child other than gone. It must
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
