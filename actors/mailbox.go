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
// in the order sent. Senders that wait for space get it in the order in which
// they began to wait; only control messages overtake them.
//
// # Accounting
//
// Every message that is not handled is reported to OnDrop. A message that the
// mailbox refuses is reported as DropClosed. A message that it accepts is either
// handled to completion or reported once: messages handled and messages dropped
// add up to messages sent.
//
// # Life
//
// The mailbox closes when its actor is about to end: when the system message
// *actor.Stop reaches an actor without children, or when the Terminated of the
// last child reaches an actor that has had its Stop. Every way to stop an actor
// goes through that Stop, a poison pill and a supervisor's decision included.
// The mailbox closes before it passes the message on. It drops the messages that
// wait at that moment as DropStopped, all of them before the actor gets its Stopped
// and its parent and watchers get their Terminated. It refuses senders that wait
// for space: they report their messages as DropClosed. Until then an actor that
// waits for its children handles messages as before, so that no child blocks on it.
//
// A restart keeps the mailbox: it loses only the message that failed. There are two
// races between a restart and a stop. If the restart reaches an actor that is still
// stopping, the library forgets the stop; the mailbox opens again if it had closed.
// If the restart reaches an actor that has ended, it would start an actor without
// an address; the mailbox discards the restart. The process registry tells the two
// apart: an actor leaves it as the first step of its end.
//
// # Concurrency
//
// All methods are safe for concurrent use, but RegisterHandlers and Start
// are for the library to call, once and in that order. A message that arrives
// before Start waits.
//
// Unlike the library's mailboxes, this one treats an actor.MessageBatch as one
// message.
type Mailbox struct {
	// Set once, before the mailbox is started, and read by the actor and all senders.
	options     MailboxOptions
	invoker     actor.MessageInvoker
	dispatcher  actor.Dispatcher
	spinner     *Spinner // of the dispatcher; nil: it has none
	actorInfo   actorInfo
	processFunc func() // m.process, made once

	// attention has a bit for each kind of work that the actor must do before the
	// next message. Written under mu, read by the actor without it.
	attention atomic.Uint32

	_ cpu.CacheLinePad // senders write below, on every post

	// The fields that every post writes come first: they span few cache lines.
	mu             lockorder.Mutex[lockorder.Mailbox]
	running        bool  // a worker is in process, or about to be
	started        bool  // Start was called
	closed         bool  // the actor has ended or is about to
	accepted       int64 // user messages taken from senders
	controls       int64 // of these, control messages
	seenTaken      int64 // bounded messages that the actor has taken, as last read by a sender
	users          queue[entry]
	waitingSenders queue[*waitingSender]
	system         queue[any]

	_ cpu.CacheLinePad // the actor writes below, on every message

	// taken counts the user messages that no longer wait, takenControls the
	// control messages among them. The actor raises both without mu, before it
	// handles a message, and senders read them when the mailbox looks full.
	// takenControls is raised first and read last: a sender may count a message
	// as waiting for a moment after it was taken, but never the other way round.
	taken         atomic.Int64
	takenControls atomic.Int64

	// batch[next:] are the messages that left the queue but still wait. They
	// belong to the running worker, or to the holder of mu if none is running.
	batch        []entry
	next         int
	current      any // the message in the actor's hands
	phase        phase
	stopReceived bool // a Stop has reached the actor
	yielded      bool // the worker found no message, has yielded and checks once more
	inline       bool // the worker is a sender in RunInline: it does not yield
}

var _ actor.Mailbox = (*Mailbox)(nil)

// The bits of Mailbox.attention.
const (
	attendSystem    uint32 = 1 << iota // system messages wait
	attendSenders                      // senders wait for space
	attendSuspended                    // user messages have to wait
)

// phase is what the worker runs; fail reads it when a handler did not return.
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

// waitingSender is a sender that waits for space.
type waitingSender struct {
	entry    entry
	admitted chan bool // capacity 1; false: the mailbox has closed
}

// NewMailbox returns an empty mailbox. It panics if the capacity is negative or above
// MaxMailboxCapacity.
func NewMailbox(options MailboxOptions) *Mailbox {
	if options.Capacity < 0 || options.Capacity > MaxMailboxCapacity {
		panic(fmt.Sprintf("actors: the capacity of a mailbox is %d, it must be from 0 (the default) to %d", options.Capacity, MaxMailboxCapacity))
	}
	m := &Mailbox{options: options.withDefaults()}
	m.processFunc = m.process
	return m
}

// RegisterHandlers sets the invoker that handles the messages and the dispatcher that runs
// the mailbox.
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

// Start starts the delivery of messages to the actor.
func (m *Mailbox) Start() {
	m.mu.Lock()
	m.started = true
	wake := m.wakeLocked()
	m.mu.Unlock()
	m.schedule(wake)
}

// PostUserMessage queues the message for the actor. If the message is bounded and
// the mailbox is full, it waits for space. If the mailbox is closed, or closes
// meanwhile, the message goes to OnDrop.
//
// An actor must not send bounded messages to itself, nor two actors to each other,
// unless another limit keeps their mailboxes from filling up.
func (m *Mailbox) PostUserMessage(message any) { m.Queue(message).Start() }

// PostAndRun is PostUserMessage for a sender that waits for the actor's answer: see
// [Run.RunInline].
func (m *Mailbox) PostAndRun(message any) { m.Queue(message).RunInline() }

// Queue queues the message, as PostUserMessage does, and runs no handler: a sender may hold
// locks that the actor takes. When the caller has released them, it calls Start or RunInline
// of the Run that Queue returns; until then the actor does not run.
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

// Run is the duty to run an actor that was idle when a message was queued for it. The holder
// calls Start or RunInline once. The zero value belongs to an actor that runs already: both do
// nothing.
type Run struct{ mailbox *Mailbox }

// Start has a worker of the dispatcher run the actor.
func (r Run) Start() {
	if r.mailbox != nil {
		r.mailbox.schedule(true)
	}
}

// RunInline runs the actor on the caller's goroutine, until the actor is idle or has handled
// inlineLimit messages. That saves waking a worker and being woken by it, which can take
// longer than the work itself. The caller holds no lock that the actor may take.
func (r Run) RunInline() {
	if r.mailbox != nil {
		r.mailbox.inline = true // the caller's while it runs
		r.mailbox.process()
	}
}

// Needed reports whether the holder has to run an actor.
func (r Run) Needed() bool { return r.mailbox != nil }

// PostSystemMessage queues a message of the library ahead of all user messages. It
// is always accepted.
func (m *Mailbox) PostSystemMessage(message any) {
	m.mu.Lock()
	m.system.push(message)
	m.attendLocked(attendSystem, true)
	wake := m.wakeLocked()
	m.mu.Unlock()
	m.schedule(wake)
}

// Len returns how many user messages wait, without the message that is being
// handled and those of senders that wait for space.
func (m *Mailbox) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int(m.accepted - m.taken.Load())
}

// UserMessageCount returns Len.
func (m *Mailbox) UserMessageCount() int { return m.Len() }

// accept queues the message, and waits for space if need be. wake reports whether the
// caller has to schedule the mailbox, ok whether the mailbox has accepted the message.
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

// waitAndUnlock waits until the mailbox has accepted e, or has closed.
func (m *Mailbox) waitAndUnlock(e entry) (admitted bool) {
	w := &waitingSender{entry: e, admitted: make(chan bool, 1)}
	m.waitingSenders.push(w)
	m.attendLocked(attendSenders, true)
	// The actor raises taken and then reads waitingSenders; the sender joins
	// waitingSenders and then reads taken again. So one of them sees the other.
	m.admitLocked()
	wake := m.wakeLocked()
	m.mu.Unlock()
	m.schedule(wake)
	lockorder.AssertNone("a sender waits for space in a mailbox")
	return <-w.admitted
}

// isControl reports whether the message is exempt from the capacity.
func (m *Mailbox) isControl(message any) bool {
	message = actor.UnwrapEnvelopeMessage(message)
	switch message.(type) {
	case *actor.PoisonPill, *actor.ReceiveTimeout:
		return true
	}
	return m.options.Bounded != nil && !m.options.Bounded(message)
}

// hasSpaceLocked reports whether one more bounded message may be accepted now.
func (m *Mailbox) hasSpaceLocked() bool {
	if m.waitingSenders.len() > 0 {
		return false // waiting senders come first
	}
	return m.belowCapacityLocked()
}

func (m *Mailbox) belowCapacityLocked() bool {
	capacity := int64(m.options.Capacity)
	bounded := m.accepted - m.controls
	if bounded-m.seenTaken < capacity {
		return true
	}
	// Read the actor's counters only now: their cache line is contended.
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

// admitLocked accepts the messages of waiting senders while there is space.
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

// drop reports a message to OnDrop. It must be called without the lock.
func (m *Mailbox) drop(message any, reason DropReason) {
	if m.options.OnDrop != nil {
		m.options.OnDrop(actor.UnwrapEnvelopeMessage(message), reason)
	}
}

// discardAndUnlock refuses the messages of waiting senders, unlocks, and drops the
// messages that wait. Only the worker calls it: it owns the batch.
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

// countTaken counts e as no longer waiting; takenControls first, as the comment of
// the fields requires.
func (m *Mailbox) countTaken(e entry) {
	if e.control {
		m.takenControls.Add(1)
	}
	m.taken.Add(1)
}
