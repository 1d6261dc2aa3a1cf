package actors

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Writer is the actor that owns a store's accounts: nothing else calls the
// store's writer-only methods. Its methods are safe for concurrent use.
//
// Reservations that find no room wait in one queue and are served in order, so
// that a large one is not starved by small ones behind it. One that lacks room
// on a device holds up only those that want room there: see waiters. Each
// release while somebody waits wakes the writer, and so does each waiter that
// gives up, for it may have been the one that held up the others.
type Writer struct {
	store    *shmstore.Store
	mailbox  *Mailbox
	system   *System
	pid      *actor.PID
	requests sync.Pool   // of *reserve, without an owner
	retryDue atomic.Bool // a lookAgain is on its way
	closing  sync.Once
	stopped  chan struct{} // closed by the actor, when all are answered

	// scarce is up while somebody waits for room in the arena, and for good when
	// the actor stops. The actor raises it and then takes extents back; a producer keeps
	// an extent and then looks at it. So one of them sees the other, and no
	// extent lies idle while somebody waits for its room.
	scarce atomic.Bool

	// producers hold extents, which the writer takes back when others wait.
	mu        lockorder.Mutex[lockorder.Writer]
	producers map[*Producer]struct{}
}

// NewWriter starts the writer actor of store. From here on, until Close has
// returned nil, only the writer may call the store's writer-only methods.
func (s *System) NewWriter(store *shmstore.Store) *Writer {
	w := &Writer{
		store:     store,
		system:    s,
		stopped:   make(chan struct{}),
		producers: make(map[*Producer]struct{}),
	}
	w.mailbox = NewMailbox(MailboxOptions{Bounded: never, OnDrop: refuseLate})
	store.OnRoom(w.retry)
	a := &writerActor{w: w} // outlives a restart: others wait for answers from it
	w.pid = s.proto.Root.Spawn(actor.PropsFromProducer(
		func() actor.Actor { return a },
		actor.WithDispatcher(s.dispatcher),
		actor.WithMailbox(func() actor.Mailbox { return w.mailbox }),
	))
	return w
}

// Messages to the writer.
type (
	// reserve asks for n reservations of size bytes, or for one with a piece of
	// a device.
	reserve struct {
		size, n     int
		codec       codec.ID
		alone       bool            // in a segment of its own
		makes       bool            // the writer makes memory itself
		device      shmstore.Device // nil: none
		deviceBytes int64
		into        []shmstore.Reservation
		piece       uint32
		err         error
		state       atomic.Uint32
		done        chan struct{} // capacity 1: the answer is in into and err
	}
	retry struct{}
	// call runs a function on the writer's goroutine.
	call struct {
		f        func(*shmstore.Store)
		done     chan struct{} // closed when the fields below are final
		ran      bool
		panicked *Panic
	}
)

// States of a reserve: it is answered or given up, never both.
const (
	reserveOpen uint32 = iota
	reserveAnswered
	reserveGivenUp
)

// Reserve grants up to n reservations of size bytes each, at least one,
// appended to dst. While there is no room it waits, until done or cancel is
// closed; either may be nil. The error is then ErrCanceled, or ErrStopped if
// the writer was closed. After cancel it says that there was no room: a writer that
// has had no time to look is waited for. An error of the store that waiting cannot mend, such
// as shmstore.ErrTooLarge, comes back at once.
func (w *Writer) Reserve(done, cancel <-chan struct{}, dst []shmstore.Reservation, n, size int, c codec.ID) ([]shmstore.Reservation, error) {
	return w.reserveMade(done, cancel, dst, n, size, c, false)
}

// ReserveAlone is Reserve for one object that gets a segment of its own.
func (w *Writer) ReserveAlone(done, cancel <-chan struct{}, size int, c codec.ID) (shmstore.Reservation, error) {
	var one [1]shmstore.Reservation
	got, err := w.reserveMade(done, cancel, one[:0], 1, size, c, true)
	if err != nil {
		return shmstore.Reservation{}, err
	}
	return got[0], nil
}

// reserveMade reserves, and makes memory that is left to be made.
func (w *Writer) reserveMade(done, cancel <-chan struct{}, dst []shmstore.Reservation, n, size int, c codec.ID, alone bool) ([]shmstore.Reservation, error) {
	got, err := w.reserve(done, cancel, dst, n, size, c, alone, false)
	if err != nil || !got[len(dst)].NeedsMemory() {
		return got, err
	}
	if err = w.store.Make(&got[len(dst)]); err == nil {
		return got, nil
	}
	got[len(dst)].Abort()
	if errors.Is(err, shmstore.ErrMemory) {
		return w.reserve(done, cancel, dst, n, size, c, alone, true)
	}
	return dst, err
}

// reserve is reserveMade, but that the memory of a large object is left to be made, unless that
// is for the writer: it can evict others for it, and have the caller wait.
func (w *Writer) reserve(done, cancel <-chan struct{}, dst []shmstore.Reservation, n, size int, c codec.ID, alone, makes bool) ([]shmstore.Reservation, error) {
	m := w.newReserve()
	m.size, m.n, m.codec, m.alone, m.makes, m.into, m.err = size, n, c, alone, makes, dst, nil
	if err := w.ask(done, cancel, m); err != nil {
		return dst, err // m is not used again: the writer may still know it
	}
	into := m.into
	m.into = nil
	w.requests.Put(m)
	return into, nil
}

// ReserveOn is Reserve for one object of size bytes that holds a piece of dev:
// see shmstore.Store.ReserveOn. It waits for room in both memories.
func (w *Writer) ReserveOn(done, cancel <-chan struct{}, dev shmstore.Device, deviceBytes int64, size int, c codec.ID) (r shmstore.Reservation, piece uint32, err error) {
	m := &reserve{size: size, n: 1, codec: c, device: dev, deviceBytes: deviceBytes, done: make(chan struct{}, 1)}
	if err := w.ask(done, cancel, m); err != nil {
		return shmstore.Reservation{}, 0, err
	}
	return m.into[0], m.piece, nil
}

// ask waits until m is answered, or until done or cancel is closed.
func (w *Writer) ask(done, cancel <-chan struct{}, m *reserve) error {
	lockorder.AssertNone("a goroutine waits for room in the store")
	m.state.Store(reserveOpen)
	w.mailbox.PostAndRun(m)
	select {
	case <-m.done:
	case <-done:
		if w.giveUp(m) {
			return ErrCanceled
		}
	case <-cancel:
		_ = w.Do(func(*shmstore.Store) {}) // behind m, which has been looked at by then
		if w.giveUp(m) {
			return ErrCanceled
		}
	}
	return m.err
}

// newReserve gives a reserve out of the pool. The pool is the writer's own: its
// channels belong to the synctest bubble, if any, that the writer lives in.
func (w *Writer) newReserve() *reserve {
	if m, ok := w.requests.Get().(*reserve); ok {
		return m
	}
	return &reserve{done: make(chan struct{}, 1)}
}

// giveUp reports whether m was still open. If it was answered, the answer is
// there when giveUp returns.
func (w *Writer) giveUp(m *reserve) bool {
	if m.state.CompareAndSwap(reserveOpen, reserveGivenUp) {
		w.retry()
		return true
	}
	<-m.done
	return false
}

// Do runs f in the writer's place, with the store whose accounts it may then
// use, and waits for it. It comes behind the reservations that were asked for
// before. If f panics, so does Do, with a *Panic that tells where. f must not
// call Do or Reserve, which would wait for it. After Close the error is
// ErrStopped, and f is not called.
func (w *Writer) Do(f func(*shmstore.Store)) error {
	m := &call{f: f, done: make(chan struct{})}
	w.mailbox.PostUserMessage(m)
	<-m.done
	switch {
	case m.panicked != nil:
		panic(m.panicked)
	case !m.ran:
		return ErrStopped
	}
	return nil
}

// Post has f run in the writer's place, as Do does, and does not wait for it. After
// Close f is not called.
func (w *Writer) Post(f func(*shmstore.Store)) {
	w.mailbox.PostUserMessage(&call{f: f, done: make(chan struct{})})
}

// Retry has the writer look for room again, for those who wait, after room has
// come that no lease or reservation gave back.
func (w *Writer) Retry() { w.retry() }

// Close stops the actor, takes all extents back and waits for that. Waiting
// reservations get ErrStopped. It returns early, with the context's error, when
// a function given to Do does not come back. It may be called again.
func (w *Writer) Close(ctx context.Context) error {
	w.closing.Do(func() { w.system.proto.Root.Stop(w.pid) })
	if err := await(ctx, w.stopped); err != nil {
		return fmt.Errorf("actors: close writer: a function given to Do is still running: %w", err)
	}
	return nil
}

// retry has the writer look for room again. It is called by whoever
// releases a lease or a reservation while the writer wants room, and by
// waiters that give up. One message is on its way at most.
func (w *Writer) retry() {
	if w.retryDue.CompareAndSwap(false, true) {
		w.mailbox.PostUserMessage(retry{})
	}
}

func refuseLate(message any, _ DropReason) {
	switch m := message.(type) {
	case *reserve:
		m.answer(nil, ErrStopped)
	case *call:
		close(m.done)
	}
}

// answer appends got to the caller's slice, unless the caller has given up: the
// slice is then the caller's alone.
func (m *reserve) answer(got []shmstore.Reservation, err error) bool {
	if !m.state.CompareAndSwap(reserveOpen, reserveAnswered) {
		return false
	}
	m.into, m.err = append(m.into, got...), err
	m.done <- struct{}{}
	return true
}

// settled reports whether m needs no answer any more.
func (m *reserve) settled() bool { return m.state.Load() != reserveOpen }

// run calls f. A panic is for the caller of Do: it says nothing about the
// writer. Should f end the goroutine instead, the mailbox reports m as dropped.
func (m *call) run(store *shmstore.Store) {
	defer func() {
		if r := recover(); r != nil {
			m.panicked = &Panic{Value: r, Stack: debug.Stack()}
			close(m.done)
		}
	}()
	m.f(store)
	m.ran = true
	close(m.done)
}

// writerActor is the writer's side that runs on its own goroutine.
type writerActor struct {
	w       *Writer
	waiting waiters
	scratch []shmstore.Reservation
}

// Receive implements actor.Actor.
func (a *writerActor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *reserve:
		a.reserve(m)
	case retry:
		a.w.retryDue.Store(false)
		a.serveWaiting()
	case *call:
		m.run(a.w.store)
	case *actor.Stopped:
		a.stop()
	}
}

// grant answers m, unless it has to wait for what it lacks.
func (a *writerActor) grant(m *reserve) (lacks shortage) {
	if m.settled() {
		return shortage{} // given up
	}
	got, err := a.place(m)
	if errors.Is(err, shmstore.ErrFull) {
		return shortageOf(m, err)
	}
	a.scratch = got
	if !m.answer(got, err) {
		for i := range got {
			got[i].Abort()
		}
	}
	return shortage{}
}

// place asks the store for what m wants.
func (a *writerActor) place(m *reserve) (got []shmstore.Reservation, err error) {
	switch {
	case m.device != nil:
	case m.alone:
		return a.w.store.ReserveAlone(a.scratch[:0], m.size, m.codec, m.makes)
	case m.makes:
		return a.w.store.ReserveExtent(a.scratch[:0], m.n, m.size, m.codec, 0)
	default:
		return a.w.store.ReserveAhead(a.scratch[:0], m.n, m.size, m.codec, 0)
	}
	r, piece, err := a.w.store.ReserveOn(m.device, m.deviceBytes, m.size, m.codec, 0)
	if err != nil {
		return a.scratch[:0], err
	}
	m.piece = piece
	return append(a.scratch[:0], r), nil
}

// stop answers who waits and takes the extents back, those too that producers
// are about to keep.
func (a *writerActor) stop() {
	for _, m := range a.waiting.queue {
		m.answer(nil, ErrStopped)
	}
	a.waiting = waiters{}
	a.w.scarce.Store(true)
	a.w.revokeExtents()
	a.w.store.WantRoom(false)
	close(a.w.stopped)
}
