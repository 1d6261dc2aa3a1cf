package ring

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

const defaultTimeout = 30 * time.Second

// A Room is a store with its writer actor, whose putters wait for room in order. Any
// goroutine may use it.
type Store struct {
	timeout    time.Duration
	timeoutSet bool // that timeout, by the caller of NewStore

	system   *actors.System
	writer   *actors.Writer
	producer *actors.Producer
	mu       lockorder.Mutex[lockorder.RingStore] // takes the writer's place when the writer has stopped
	store    *shmstore.Store
}

// NewStore makes a store. A put waits for room for as long as the timeout; zero is
// 30 s, or for longer where its context says until when.
func NewStore(opts shmstore.Options, timeout time.Duration) (*Store, error) {
	if timeout < 0 {
		return nil, fmt.Errorf("%w: a timeout is not negative", connector.ErrSettings)
	}
	told := timeout > 0
	if !told {
		timeout = defaultTimeout
	}
	opts.Reuse = true // nobody comes for a value that was released
	store, err := shmstore.Create(opts)
	if err != nil {
		return nil, fmt.Errorf("ring: %w", err)
	}
	system := actors.NewSystem(actors.Options{})
	writer := system.NewWriter(store)
	return &Store{timeout: timeout, timeoutSet: told, system: system, writer: writer, producer: writer.NewProducer(), store: store}, nil
}

// An Object is a payload in a room, a [connector.Payload].
type Object struct {
	lease shmstore.Lease
	owner *Store
}

// Bytes implements [connector.Payload].
func (o *Object) Bytes() []byte { return o.lease.Bytes() }

// Release implements [connector.Payload].
func (o *Object) Release() { o.lease.Release() }

// Share implements [Sharer].
func (o *Object) Share() (connector.Payload, error) {
	if err := o.lease.Share(1); err != nil {
		return nil, err
	}
	lease, err := o.owner.store.Local().Take(o.lease.Handle())
	if err != nil {
		return nil, fmt.Errorf("take what was shared: %w", err)
	}
	return &Object{lease: lease, owner: o.owner}, nil
}

// Offset is where the object begins in the room's [Store.Arena]. It is not for one
// with a segment of its own.
func (o *Object) Offset() int64 { return int64(o.lease.Handle().Offset) } //nolint:gosec // an arena is smaller

// Large reports whether the object has a segment of its own.
func (o *Object) Large() bool { return shmstore.IsLarge(o.lease.Handle()) }

// Segment opens the segment of an object that has one of its own once more. It is
// the caller's to close.
func (o *Object) Segment() (mem *shmstore.Segment, err error) {
	o.owner.withStore(func(s *shmstore.Store) { mem, err = s.ExposeLarge(o.lease.Handle()) })
	return mem, err //nolint:wrapcheck // it says what it did
}

// Arena opens the room's arena once more, for processes that read objects by
// their place in it. It is the caller's to close.
func (st *Store) Arena() (*shmstore.Segment, error) {
	return st.store.ArenaSegment() //nolint:wrapcheck // it says what it did
}

// SpaceBytes is how many bytes of the store an object of size bytes takes, header and
// alignment apart.
func (st *Store) SpaceBytes(size int) int { return st.writer.RoomBytes(size) }

// Write makes an object of size bytes, which are more than none, and has fill
// write them. Its error is returned as it is; others are [connector.ErrFull], with
// who holds what, [connector.ErrTooLarge], [connector.ErrClosed] and the
// context's.
func (st *Store) Write(ctx context.Context, size int, fill func(dst []byte) error) (*Object, error) {
	reservation, err := st.reserve(ctx, size)
	if err != nil {
		return nil, err
	}
	if err := fillReservation(&reservation, size, fill); err != nil {
		return nil, err
	}
	h, err := reservation.Commit(size, 1)
	if err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	lease, err := st.store.Local().Take(h)
	if err != nil {
		return nil, fmt.Errorf("take what was committed: %w", err)
	}
	return &Object{lease: lease, owner: st}, nil
}

// fillReservation gives the reservation back when its bytes cannot be written, even by a
// panic.
func fillReservation(r *shmstore.Reservation, size int, fill func(dst []byte) error) (err error) {
	written := false
	defer func() {
		if !written {
			r.Abort()
		}
	}()
	err = fill(r.Bytes()[:size:size])
	written = err == nil
	return err
}

// Check returns what is wrong with the store; nothing ever should be.
func (st *Store) Check() (wrong []shmstore.Violation) {
	st.withStore(func(s *shmstore.Store) { wrong = s.Check() })
	return wrong
}

// withStore runs f in the writer's place, which is the caller's when the writer has stopped.
func (st *Store) withStore(f func(*shmstore.Store)) {
	if st.writer.Do(f) == nil {
		return
	}
	st.Stop() // a writer that stops is still at work
	st.mu.Lock()
	defer st.mu.Unlock()
	f(st.store)
}

// Stop lets nobody write any more; those who wait get [connector.ErrClosed].
func (st *Store) Stop() { _ = st.writer.Close(context.Background()) }

// Close gives the memory back. While an object is held or being written its memory
// stays, and the error says so; calling Close again tries again.
func (st *Store) Close() error {
	st.Stop()
	_ = st.system.Close(context.Background()) // it has no stages that could hold it up
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := st.store.Close(); err != nil {
		return fmt.Errorf("ring: %w", err)
	}
	return nil
}

// closedChan is a wait that is over before it begins.
var closedChan = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// reserve waits for room. What finds room at once pays for no deadline.
func (st *Store) reserve(ctx context.Context, size int) (shmstore.Reservation, error) {
	reservation, err := st.requestSpace(closedChan, nil, size)
	if !errors.Is(err, actors.ErrCanceled) {
		return reservation, err
	}
	timeout := st.timeout
	if until, ok := ctx.Deadline(); ok && !st.timeoutSet {
		timeout = max(timeout, time.Until(until))
	}
	patience, cancel := context.WithTimeoutCause(ctx, timeout, connector.ErrFull)
	defer cancel()
	reservation, err = st.requestSpace(nil, patience.Done(), size)
	switch {
	case !errors.Is(err, actors.ErrCanceled):
		return reservation, err
	case errors.Is(context.Cause(patience), connector.ErrFull):
		return reservation, fmt.Errorf("%w within %v: %w", connector.ErrFull, timeout, st.fullError(size))
	}
	return reservation, fmt.Errorf("%w: %w", ctx.Err(), st.fullError(size))
}

// requestSpace asks the writer for room, and says its errors in the connector's words.
func (st *Store) requestSpace(done, cancel <-chan struct{}, size int) (shmstore.Reservation, error) {
	reservation, err := st.producer.Reserve(done, cancel, size, codec.IDRaw)
	switch {
	case errors.Is(err, shmstore.ErrTooLarge):
		err = fmt.Errorf("%w: %w", connector.ErrTooLarge, err)
	case errors.Is(err, actors.ErrStopped):
		err = connector.ErrClosed
	}
	return reservation, err
}

// fullError says why there is no room for so many bytes, and who holds what.
func (st *Store) fullError(size int) (err error) {
	st.withStore(func(s *shmstore.Store) {
		var got []shmstore.Reservation
		if got, err = s.ReserveAhead(nil, 1, size, codec.IDRaw, 0); err == nil {
			got[0].Abort()
			err = fmt.Errorf("%w: puts that came before wait for room", shmstore.ErrFull)
		}
	})
	return err
}
