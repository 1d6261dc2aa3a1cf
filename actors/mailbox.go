package actors

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
	"golang.org/x/sys/cpu"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// Mailbox is a bounded mailbox for one actor.
//
// # Order
//
// System messages come before user messages. Messages of one sender are handled
// in the order sent. Senders that wait for room get it in the order in which
// they began to wait, and nobody overtakes them but control messages.
//
// # Accounting
//
// OnDrop learns of every message that is not handled. What cannot be delivered goes
// there as DropClosed. What was taken is
// either handled to completion or goes to OnDrop once: so messages handled and
// messages dropped add up to messages sent.
//
// # Life
//
// The mailbox closes when its actor is about to end: when the system message
// *actor.Stop reaches an actor without children, or when the Terminated of the
// last child reaches an actor that has had its Stop. Every way to stop an actor
// goes through that Stop, a poison pill and a supervisor's decision included.
// The mailbox closes before it passes the message on. What waits at that moment
// is dropped as DropStopped and senders that wait for room are turned away; so
// by the time the actor gets its Stopped, and its parent and watchers their
// Terminated, all of that has been reported. Until then an actor that waits for
// its children handles messages as ever, so that no child blocks on it.
//
// A restart leaves the mailbox as it is: it loses the message that failed and
// no other. There are two races between a restart and a stop. A restart that
// reaches an actor which is still stopping makes the library forget the stop;
// the mailbox opens again if it had closed. A restart that reaches an actor
// which has ended would start one that nobody can reach; the mailbox swallows
// it. It tells the two apart by the process registry, which an actor leaves as
// the first step of its end.
//
// # Concurrency
//
// All methods are safe for concurrent use, but RegisterHandlers and Start
// are for the library to call, once and in that order. A message that arrives
// before Start waits.
//
// Unlike the library's mailboxes, this one takes an actor.MessageBatch for one
// message, and does not unpack it.
type Mailbox struct {
	// Set once, before the mailbox is started, and read by everybody.
	options     MailboxOptions
	invoker     actor.MessageInvoker
	dispatcher  actor.Dispatcher
	spinner     *Spinner // of the dispatcher; nil: it has none
	actorInfo   actorInfo
	processFunc func() // m.process, made once

	// attention tells the actor what else there is to do before the next
	// message. Written under mu, read by the actor without it.
	attention atomic.Uint32

	_ cpu.CacheLinePad // senders write below, on every post

	// What every post writes comes first, so that it spans few cache lines.
	mu             lockorder.Mutex[lockorder.Mailbox]
	running        bool  // a worker is in process, or about to be
	started        bool  // Start was called
	closed         bool  // the actor has ended or is about to
	accepted       int64 // user messages taken from senders
	controls       int64 // of these, control messages
	seenTaken      int64 // the last known number of bounded messages that are gone
	users          queue[entry]
	waitingSenders queue[*waitingSender]
	system         queue[any]

	_ cpu.CacheLinePad // the actor writes below, on every message

	// taken counts the user messages that no longer wait, takenControls the
	// control messages among them. The actor raises both without mu, before it
	// handles a message, and senders read them when the mailbox looks full.
	// takenControls is raised first and read last, so a sender may believe for
	// a moment that a message still waits which does not, but never the other
	// way round.
	taken         atomic.Int64
	takenControls atomic.Int64

	// batch[next:] are the messages that left the queue but still wait. They
	// belong to the running worker, or to the holder of mu if none is running.
	batch        []entry
	next         int
	current      any // the message in the actor's hands
	phase        phase
	stopReceived bool // a Stop has reached the actor
	yielded      bool // the worker found nothing to do and is looking once more
	inline       bool // the worker is a sender, which has better things to do than look once more
}

var _ actor.Mailbox = (*Mailbox)(nil)

// The bits of Mailbox.attention.
const (
	attendSystem    uint32 = 1 << iota // system messages wait
	attendSenders                      // senders wait for room
	attendSuspended                    // user messages have to wait
)

// phase says what the worker is doing, for the case that it does not return.
type phase uint8

const (
	betweenMessages phase = iota
	inUserMessage
	inSystemMessage
)

// entry is a user message in the queue.
type entry struct {
	message any
	control bool // does not count against the capacity
}

// waitingSender is a sender that waits for room.
type waitingSender struct {
	entry    entry
	admitted chan bool // has room for one; false: the mailbox has closed
}

// NewMailbox returns an empty mailbox. It panics if the capacity is none that a mailbox
// can have.
func NewMailbox(options MailboxOptions) *Mailbox {
	if options.Capacity < 0 || options.Capacity > MaxMailboxCapacity {
		panic(fmt.Sprintf("actors: the capacity of a mailbox is %d, it must be from 0 (the default) to %d", options.Capacity, MaxMailboxCapacity))
	}
	m := &Mailbox{options: options.withDefaults()}
	m.processFunc = m.process
	return m
}

// RegisterHandlers tells the mailbox who handles its messages and who runs it.
func (m *Mailbox) RegisterHandlers(invoker actor.MessageInvoker, dispatcher actor.Dispatcher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.invoker, m.dispatcher = invoker, dispatcher
	if d, ours := dispatcher.(*Dispatcher); ours {
		m.spinner = d.spinner
	}
	m.actorInfo = actorInfoOf(invoker)
	m.batch = make([]entry, 0, min(drainBatch, m.options.Capacity))
}

// Start lets the actor have its messages.
func (m *Mailbox) Start() {
	m.mu.Lock()
	m.started = true
	wake := m.wakeLocked()
	m.mu.Unlock()
	m.schedule(wake)
}

// PostUserMessage gives the message to the actor. If the message is bounded and
// the mailbox is full it waits for room. If the mailbox is closed, or closes
// meanwhile, the message goes to OnDrop.
//
// An actor must not send a bounded message to itself, nor two actors to each
// other, unless something else keeps their mailboxes from being full.
func (m *Mailbox) PostUserMessage(message any) { m.Queue(message).Start() }

// PostAndRun is PostUserMessage for a sender that waits for the actor's answer
// and has nothing else to do: see [Run.Lend].
func (m *Mailbox) PostAndRun(message any) { m.Queue(message).RunInline() }

// Queue puts the message in order, as PostUserMessage does, and runs nothing: a sender may
// hold locks that the actor wants. The caller starts or lends the run that Queue returns
// when it has let them go; until then the actor stands still.
func (m *Mailbox) Queue(message any) Run {
	idle, ok := m.accept(message)
	if !ok {
		m.drop(message, DropClosed)
	}
	if !idle {
		return Run{}
	}
	return Run{m}
}

// Run is the duty to have an actor run that stood idle when a message was queued for it. It
// is started, or lent to, once. The zero value is that of an actor which runs already.
type Run struct{ mailbox *Mailbox }

// Start has a worker of the dispatcher run the actor.
func (r Run) Start() {
	if r.mailbox != nil {
		r.mailbox.schedule(true)
	}
}

// RunInline runs the actor on the caller's goroutine, until the actor has nothing left to do or
// has done enough for others. That saves waking a worker and being woken by it, which can
// take longer than the work itself. The caller holds no lock that the actor might want.
func (r Run) RunInline() {
	if r.mailbox != nil {
		r.mailbox.inline = true // the caller's while it runs
		r.mailbox.process()
	}
}

// Needed reports whether there is an actor to run.
func (r Run) Needed() bool { return r.mailbox != nil }

// PostSystemMessage gives a message of the library to the actor, ahead of all
// user messages. It is always accepted.
func (m *Mailbox) PostSystemMessage(message any) {
	m.mu.Lock()
	m.system.push(message)
	m.attendLocked(attendSystem, true)
	wake := m.wakeLocked()
	m.mu.Unlock()
	m.schedule(wake)
}

// Len returns how many user messages wait. The message that is being handled is
// not among them, and neither are those of senders that wait for room.
func (m *Mailbox) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int(m.accepted - m.taken.Load())
}

// UserMessageCount returns Len.
func (m *Mailbox) UserMessageCount() int { return m.Len() }

// accept takes the message, which may have to wait for room. It reports whether the
// caller has to schedule the mailbox, and whether that has the message.
func (m *Mailbox) accept(message any) (wake, ok bool) {
	e := entry{message: message, control: m.isControl(message)}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false, false
	}
	if !e.control && !m.hasSpaceLocked() {
		return false, m.waitAndUnlock(e)
	}
	m.acceptLocked(e)
	wake = !m.running && m.wakeLocked()
	m.mu.Unlock()
	return wake, true
}

// waitAndUnlock waits until the mailbox has taken e, or has closed.
func (m *Mailbox) waitAndUnlock(e entry) (admitted bool) {
	w := &waitingSender{entry: e, admitted: make(chan bool, 1)}
	m.waitingSenders.push(w)
	m.attendLocked(attendSenders, true)
	// The actor raises taken and then looks for waiters; the sender becomes a
	// waiter and then looks at taken again. So one of them sees the other.
	m.admitLocked()
	wake := m.wakeLocked()
	m.mu.Unlock()
	m.schedule(wake)
	lockorder.AssertNone("a sender waits for room in a mailbox")
	return <-w.admitted
}

// isControl tells whether the message is exempt from the capacity.
func (m *Mailbox) isControl(message any) bool {
	message = actor.UnwrapEnvelopeMessage(message)
	switch message.(type) {
	case *actor.PoisonPill, *actor.ReceiveTimeout:
		return true
	}
	return m.options.Bounded != nil && !m.options.Bounded(message)
}

// hasSpaceLocked tells whether one more bounded message may be taken now.
func (m *Mailbox) hasSpaceLocked() bool {
	if m.waitingSenders.len() > 0 {
		return false // they come first
	}
	return m.belowCapacityLocked()
}

func (m *Mailbox) belowCapacityLocked() bool {
	capacity := int64(m.options.Capacity)
	bounded := m.accepted - m.controls
	if bounded-m.seenTaken < capacity {
		return true
	}
	// Only now look at what the actor writes: its cache line is busy.
	taken := m.taken.Load()
	m.seenTaken = taken - m.takenControls.Load()
	return bounded-m.seenTaken < capacity
}

func (m *Mailbox) acceptLocked(e entry) {
	m.users.push(e)
	m.accepted++
	if e.control {
		m.controls++
	}
}

// admitLocked takes the messages of waiting senders while there is room.
func (m *Mailbox) admitLocked() {
	for m.waitingSenders.len() > 0 && m.belowCapacityLocked() {
		w, _ := m.waitingSenders.pop()
		m.acceptLocked(w.entry)
		w.admitted <- true
	}
	m.attendLocked(attendSenders, m.waitingSenders.len() > 0)
}

// attendLocked sets or clears a bit of attention.
func (m *Mailbox) attendLocked(bit uint32, on bool) {
	bits := m.attention.Load() &^ bit
	if on {
		bits |= bit
	}
	m.attention.Store(bits)
}

// wakeLocked reports whether the caller has to schedule the mailbox, and counts
// it as running if so.
func (m *Mailbox) wakeLocked() bool {
	if m.running || !m.started || !m.hasWorkLocked() {
		return false
	}
	m.running = true
	return true
}

func (m *Mailbox) hasWorkLocked() bool {
	if m.system.len() > 0 {
		return true
	}
	suspended := m.attention.Load()&attendSuspended != 0
	return !suspended && (m.next < len(m.batch) || m.users.len() > 0)
}

func (m *Mailbox) schedule(wake bool) {
	if wake {
		m.dispatcher.Schedule(m.processFunc)
	}
}

// drop tells OnDrop about a message. It must be called without the lock.
func (m *Mailbox) drop(message any, reason DropReason) {
	if m.options.OnDrop != nil {
		m.options.OnDrop(actor.UnwrapEnvelopeMessage(message), reason)
	}
}

// discardAndUnlock turns waiting senders away, unlocks, and drops the messages
// that wait. The worker calls it, which owns the batch.
func (m *Mailbox) discardAndUnlock() {
	m.attendLocked(attendSenders, false)
	waiters := m.waitingSenders
	m.waitingSenders = queue[*waitingSender]{}
	rest := slices.Clone(m.batch[m.next:])
	clear(m.batch[m.next:])
	m.next = len(m.batch)
	rest = append(rest, make([]entry, m.users.len())...)
	m.users.take(rest[len(rest)-m.users.len():])
	for _, e := range rest {
		m.countTaken(e)
	}
	m.mu.Unlock()

	for w, ok := waiters.pop(); ok; w, ok = waiters.pop() {
		w.admitted <- false
	}
	for _, e := range rest {
		m.drop(e.message, DropStopped)
	}
}

// countTaken counts e as no longer waiting, in the order that the fields'
// comment asks for.
func (m *Mailbox) countTaken(e entry) {
	if e.control {
		m.takenControls.Add(1)
	}
	m.taken.Add(1)
}
