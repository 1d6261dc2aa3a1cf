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

// Writer is the actor that owns a store's accounts: it alone calls the store's
// writer-only methods. Its methods are safe for concurrent use.
//
// Reservations that find no space wait in one queue and are served in order, so
// that a large one is not starved by later small ones. One that lacks space on a
// device blocks only those on the same device: see reserveQueue. While a reservation
// waits, each release wakes the writer, and so does each caller that gives up: its
// reservation may have blocked the others.
//
// The writer may run on the goroutine that asks it for space. There it takes the locks Writer.mu,
// Producer.mu and largeTable.mu, those of mailboxes and of the dispatcher, and maps.mu and
// hostMap.mu of package cudaipc/lane for a large object. The asking goroutine holds none of
// them. The state of the store needs no lock: the writer alone has it, and the rest is atomics.
type Writer struct {
	store    *shmstore.Store
	mailbox  *Mailbox
	system   *System
	pid      *actor.PID
	requests sync.Pool   // of *reserve
	retryDue atomic.Bool // a retry message is on its way
	closing  sync.Once
	stopped  chan struct{} // closed by the actor, when all reservations are answered

	// scarce is true while a reservation waits for space in the arena, and for good when
	// the actor stops. The actor sets it and then takes extents back; a producer keeps
	// an extent and then reads it. So one of them sees the other, and no extent lies
	// unused while a reservation waits for its space.
	scarce atomic.Bool

	// producers hold extents, which the writer takes back when a reservation waits.
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
	w.mailbox = NewMailbox(MailboxOptions{Bounded: neverBounded, OnDrop: refuseLate})
	store.OnRoom(w.retry)
	a := &writerActor{w: w} // outlives a restart: callers wait for its answers
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
		writerMakes bool            // the writer makes memory itself
		device      shmstore.Device // nil: none
		deviceBytes int64
		into        []shmstore.Reservation
		piece       uint32
		err         error
		state       atomic.Uint32
		done        chan struct{} // capacity 1: the answer is in into and err
	}
	retry struct{}
	// call runs a function as the writer, between two other messages.
	call struct {
		f        func(*shmstore.Store)
		done     chan struct{} // closed when the fields below are final
		ran      bool
		panicked *Panic
	}
)

// States of a reserve: it is answered, or its caller gives up, never both.
const (
	reserveOpen uint32 = iota
	reserveAnswered
	reserveGivenUp
)

// Reserve grants up to n reservations of size bytes each, at least one,
// appended to dst. While there is no space it waits, until done or cancel is
// closed; either may be nil. The error is then ErrCanceled, or ErrStopped if
// the writer was closed. After cancel, Reserve first waits until the writer has
// checked for space: ErrCanceled then means that there was none. An error of the
// store that waiting cannot mend, such as shmstore.ErrTooLarge, is returned at once.
func (w *Writer) Reserve(done, cancel <-chan struct{}, dst []shmstore.Reservation, n, size int, c codec.ID) ([]shmstore.Reservation, error) {
	return w.reserveWithMemory(done, cancel, dst, n, size, c, false)
}

// ReserveAlone is Reserve for one object that gets a segment of its own.
func (w *Writer) ReserveAlone(done, cancel <-chan struct{}, size int, c codec.ID) (shmstore.Reservation, error) {
	var one [1]shmstore.Reservation
	got, err := w.reserveWithMemory(done, cancel, one[:0], 1, size, c, true)
	if err != nil {
		return shmstore.Reservation{}, err
	}
	return got[0], nil
}

// reserveWithMemory reserves, and makes the memory of a large object on the caller's
// goroutine. If the system has no memory, the writer makes it: it can evict objects.
func (w *Writer) reserveWithMemory(done, cancel <-chan struct{}, dst []shmstore.Reservation, n, size int, c codec.ID, alone bool) ([]shmstore.Reservation, error) {
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

// reserve is reserveWithMemory without the memory of a large object: the caller makes it. With
// makes, the writer makes it: it can evict objects for it, and let the caller wait.
func (w *Writer) reserve(done, cancel <-chan struct{}, dst []shmstore.Reservation, n, size int, c codec.ID, alone, makes bool) ([]shmstore.Reservation, error) {
	m := w.newReserve()
	m.size, m.n, m.codec, m.alone, m.writerMakes, m.into, m.err = size, n, c, alone, makes, dst, nil
	if err := w.submit(done, cancel, m); err != nil {
		return dst, err // m is not used again: the writer may still have it
	}
	into := m.into
	m.into = nil
	w.requests.Put(m)
	return into, nil
}

// ReserveOn is Reserve for one object of size bytes that holds a piece of dev:
// see shmstore.Store.ReserveOn. It waits for space in both memories.
func (w *Writer) ReserveOn(done, cancel <-chan struct{}, dev shmstore.Device, deviceBytes int64, size int, c codec.ID) (r shmstore.Reservation, piece uint32, err error) {
	m := &reserve{size: size, n: 1, codec: c, device: dev, deviceBytes: deviceBytes, done: make(chan struct{}, 1)}
	if err := w.submit(done, cancel, m); err != nil {
		return shmstore.Reservation{}, 0, err
	}
	return m.into[0], m.piece, nil
}

// submit posts m and waits until it is answered, or until done or cancel is closed.
func (w *Writer) submit(done, cancel <-chan struct{}, m *reserve) error {
	lockorder.AssertNone("a goroutine waits for space in the store")
	m.state.Store(reserveOpen)
	w.mailbox.PostAndRun(m)
	select {
	case <-m.done:
	case <-done:
		if w.giveUp(m) {
			return ErrCanceled
		}
	case <-cancel:
		_ = w.Do(func(*shmstore.Store) {}) // returns after the writer has tried m
		if w.giveUp(m) {
			return ErrCanceled
		}
	}
	return m.err
}

// newReserve takes a reserve from the pool. Each writer has its own pool: the
// channels belong to the synctest bubble, if any, of the writer.
func (w *Writer) newReserve() *reserve {
	if m, ok := w.requests.Get().(*reserve); ok {
		return m
	}
	return &reserve{done: make(chan struct{}, 1)}
}

// giveUp ends the wait for m and reports whether m was unanswered. If m was
// answered, the answer is in m when giveUp returns.
func (w *Writer) giveUp(m *reserve) bool {
	if m.state.CompareAndSwap(reserveOpen, reserveGivenUp) {
		w.retry()
		return true
	}
	<-m.done
	return false
}

// Do runs f as the writer and waits for it: f may call the store's writer-only
// methods. f runs after the reservations that were requested before. If f panics,
// so does Do, with a *Panic that has the stack. f must not call Do or Reserve,
// which would deadlock. After Close the error is ErrStopped, and f is not called.
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

// Post is Do without the wait. After Close f is not called.
func (w *Writer) Post(f func(*shmstore.Store)) {
	w.mailbox.PostUserMessage(&call{f: f, done: make(chan struct{})})
}

// Retry makes the writer serve its queue again. Callers use it when space has become
// free other than by the release of a lease or a reservation.
func (w *Writer) Retry() { w.retry() }

// Close stops the actor, takes all extents back and waits for both. Waiting
// reservations get ErrStopped. If a function given to Do does not return before
// the context ends, Close returns the context's error. It may be called again.
func (w *Writer) Close(ctx context.Context) error {
	w.closing.Do(func() { w.system.proto.Root.Stop(w.pid) })
	if err := await(ctx, w.stopped); err != nil {
		return fmt.Errorf("actors: close writer: a function given to Do is still running: %w", err)
	}
	return nil
}

// retry makes the writer serve its queue again. The store calls it when a lease
// or a reservation is released while the writer wants space, and callers that give
// up call it. At most one retry message is on its way.
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

// answer appends got to the caller's slice, unless the caller has given up: then
// it does not touch the slice. It reports whether it has answered.
func (m *reserve) answer(got []shmstore.Reservation, err error) bool {
	if !m.state.CompareAndSwap(reserveOpen, reserveAnswered) {
		return false
	}
	m.into, m.err = append(m.into, got...), err
	m.done <- struct{}{}
	return true
}

// resolved reports whether m is answered or its caller has given up.
func (m *reserve) resolved() bool { return m.state.Load() != reserveOpen }

// run calls f. A panic goes to the caller of Do: the writer is not restarted. If f
// ends the goroutine, the mailbox reports m as dropped.
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

// writerActor is the actor of a Writer.
type writerActor struct {
	w       *Writer
	waiting reserveQueue
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

// grant answers m, unless m lacks space: then it returns the shortage.
func (a *writerActor) grant(m *reserve) (lacks shortage) {
	if m.resolved() {
		return shortage{} // given up
	}
	got, err := a.tryReserve(m)
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

// tryReserve asks the store for the reservations of m.
func (a *writerActor) tryReserve(m *reserve) (got []shmstore.Reservation, err error) {
	switch {
	case m.device != nil:
	case m.alone:
		return a.w.store.ReserveAlone(a.scratch[:0], m.size, m.codec, m.writerMakes)
	case m.writerMakes:
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

// stop refuses the waiting reservations and takes the extents back, also those
// that producers are about to keep.
func (a *writerActor) stop() {
	for _, m := range a.waiting.queue {
		m.answer(nil, ErrStopped)
	}
	a.waiting = reserveQueue{}
	a.w.scarce.Store(true)
	a.w.revokeExtents()
	a.w.store.WantRoom(false)
	close(a.w.stopped)
}
