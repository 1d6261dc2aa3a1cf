package actors

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Writer is the actor that owns a store's accounts: nothing else calls the
// store's writer-only methods. Its methods are safe for concurrent use.
//
// Reservations that find no room wait in one queue and are served in order, so
// that a large one is not starved by small ones behind it. Each release while
// somebody waits wakes the writer.
type Writer struct {
	store   *shmstore.Store
	mailbox *Mailbox
	stopped chan struct{}
	system  *System
	pid     *actor.PID
	roomDue atomic.Bool // a lookAgain is on its way

	// producers hold extents, which the writer takes back when others wait.
	mu        sync.Mutex
	producers map[*Producer]struct{}
}

// NewWriter starts the writer actor of store. From here on only the writer may
// call the store's writer-only methods.
func (s *System) NewWriter(store *shmstore.Store) *Writer {
	w := &Writer{
		store:     store,
		system:    s,
		stopped:   make(chan struct{}),
		producers: make(map[*Producer]struct{}),
	}
	w.mailbox = NewMailbox(MailboxOptions{Bounded: never, OnDrop: refuseLate})
	store.OnRoom(w.roomMayBeBack)
	w.pid = s.proto.Root.Spawn(actor.PropsFromProducer(
		func() actor.Actor { return &writerActor{w: w} },
		actor.WithDispatcher(s.dispatcher),
		actor.WithMailbox(func() actor.Mailbox { return w.mailbox }),
	))
	return w
}

// Messages to the writer.
type (
	// reserve asks for n reservations of size bytes.
	reserve struct {
		size, n int
		codec   codec.ID
		into    []shmstore.Reservation
		err     error
		state   atomic.Uint32
		done    chan struct{} // capacity 1: the answer is in into and err
	}
	lookAgain struct{}
	// call runs a function on the writer's goroutine.
	call struct {
		f    func(*shmstore.Store)
		done chan struct{}
		ran  bool
	}
)

// States of a reserve: it is answered or given up, never both.
const (
	reserveOpen uint32 = iota
	reserveAnswered
	reserveGivenUp
)

var reservePool = sync.Pool{New: func() any { return &reserve{done: make(chan struct{}, 1)} }}

// Reserve grants up to n reservations of size bytes each, at least one,
// appended to dst. While there is no room it waits, until done or cancel is
// closed; either may be nil. The error is then ErrCanceled. An error of the store that waiting
// cannot mend, such as shmstore.ErrTooLarge, comes back at once.
func (w *Writer) Reserve(done, cancel <-chan struct{}, dst []shmstore.Reservation, n, size int, c codec.ID) ([]shmstore.Reservation, error) {
	m := reservePool.Get().(*reserve)
	m.size, m.n, m.codec, m.into, m.err = size, n, c, dst, nil
	m.state.Store(reserveOpen)
	w.mailbox.PostUserMessage(m)
	select {
	case <-m.done:
	case <-done:
		if m.giveUp() {
			return dst, ErrCanceled
		}
		<-m.done
	case <-cancel:
		if m.giveUp() {
			return dst, ErrCanceled
		}
		<-m.done
	}
	into, err := m.into, m.err
	m.into = nil
	reservePool.Put(m)
	return into, err
}

// Do runs f on the writer's goroutine, with the store whose accounts it may
// then use, and waits for it.
func (w *Writer) Do(f func(*shmstore.Store)) error {
	m := &call{f: f, done: make(chan struct{})}
	w.mailbox.PostUserMessage(m)
	<-m.done
	if !m.ran {
		return ErrStopped
	}
	return nil
}

// Close takes all extents back, stops the actor and waits for it. Waiting
// reservations get ErrStopped.
func (w *Writer) Close(ctx context.Context) error {
	w.revokeExtents()
	w.system.proto.Root.Stop(w.pid)
	select {
	case <-w.stopped:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// roomMayBeBack is called by whoever releases a lease while the writer wants
// room. One message is on its way at most.
func (w *Writer) roomMayBeBack() {
	if w.roomDue.CompareAndSwap(false, true) {
		w.mailbox.PostUserMessage(lookAgain{})
	}
}

func refuseLate(message any, _ DropReason) {
	switch m := message.(type) {
	case *reserve:
		m.answer(m.into, ErrStopped)
	case *call:
		close(m.done)
	}
}

func (m *reserve) answer(got []shmstore.Reservation, err error) bool {
	if !m.state.CompareAndSwap(reserveOpen, reserveAnswered) {
		return false
	}
	m.into, m.err = got, err
	m.done <- struct{}{}
	return true
}

// giveUp reports whether m was still open. The writer forgets it when it comes
// to it.
func (m *reserve) giveUp() bool {
	return m.state.CompareAndSwap(reserveOpen, reserveGivenUp)
}

// writerActor is the writer's side that runs on its own goroutine.
type writerActor struct {
	w       *Writer
	waiting []*reserve // oldest first
	scratch []shmstore.Reservation
}

// Receive implements actor.Actor.
func (a *writerActor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *reserve:
		a.reserve(m)
	case lookAgain:
		a.w.roomDue.Store(false)
		a.serveWaiting()
	case *call:
		m.f(a.w.store)
		m.ran = true
		close(m.done)
	case *actor.Stopped:
		for _, m := range a.waiting {
			m.answer(m.into, ErrStopped)
		}
		a.w.store.WantRoom(false)
		close(a.w.stopped)
	}
}

func (a *writerActor) reserve(m *reserve) {
	if len(a.waiting) > 0 || !a.grant(m) {
		a.waiting = append(a.waiting, m)
		a.wantRoom()
	}
}

// grant answers m, unless it has to wait for room.
func (a *writerActor) grant(m *reserve) bool {
	if m.state.Load() != reserveOpen {
		return true // given up
	}
	got, err := a.w.store.ReserveExtent(a.scratch[:0], m.n, m.size, m.codec, 0)
	if errors.Is(err, shmstore.ErrFull) {
		return false
	}
	a.scratch = got
	if !m.answer(append(m.into, got...), err) {
		for i := range got {
			got[i].Abort()
		}
	}
	return true
}

// wantRoom raises the flag that makes releases speak up, takes back what lies
// unused in extents, and then looks again: a release before the flag was seen
// would otherwise go unnoticed.
func (a *writerActor) wantRoom() {
	a.w.store.WantRoom(true)
	a.w.revokeExtents()
	a.serveWaiting()
}

func (a *writerActor) serveWaiting() {
	for len(a.waiting) > 0 && a.grant(a.waiting[0]) {
		a.waiting[0] = nil
		a.waiting = a.waiting[1:]
	}
	if len(a.waiting) == 0 {
		a.waiting = nil
		a.w.store.WantRoom(false)
	}
}
