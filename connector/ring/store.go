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

// A Store is a shared memory store with its writer actor. Puts wait for space in order. Any
// goroutine may use it.
type Store struct {
	timeout    time.Duration
	timeoutSet bool // the caller of NewStore passed a timeout

	system   *actors.System
	writer   *actors.Writer
	producer *actors.Producer
	mu       lockorder.Mutex[lockorder.RingStore] // guards store once the writer has stopped
	store    *shmstore.Store
}

// NewStore makes a store. A put waits for space for as long as the timeout; zero is 30 s, or until
// the deadline of the put's context, if that is later.
func NewStore(opts shmstore.Options, timeout time.Duration) (*Store, error) {
	if timeout < 0 {
		return nil, fmt.Errorf("%w: a timeout is not negative", connector.ErrSettings)
	}
	told := timeout > 0
	if !told {
		timeout = defaultTimeout
	}
	opts.Reuse = true // no reader comes for a value that was released
	store, err := shmstore.Create(opts)
	if err != nil {
		return nil, fmt.Errorf("ring: %w", err)
	}
	system := actors.NewSystem(actors.Options{})
	writer := system.NewWriter(store)
	return &Store{timeout: timeout, timeoutSet: told, system: system, writer: writer, producer: writer.NewProducer(), store: store}, nil
}

// An Object is a payload in a store, and a [connector.Payload].
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

// Offset is the object's offset in [Store.Arena]. It has no meaning for an object with a segment of
// its own.
func (o *Object) Offset() int64 { return int64(o.lease.Handle().Offset) } //nolint:gosec // an arena is smaller

// Large reports whether the object has a segment of its own.
func (o *Object) Large() bool { return shmstore.IsLarge(o.lease.Handle()) }

// Segment opens the segment of an object that has one of its own. The caller closes it.
func (o *Object) Segment() (mem *shmstore.Segment, err error) {
	o.owner.withStore(func(s *shmstore.Store) { mem, err = s.ExposeLarge(o.lease.Handle()) })
	return mem, err //nolint:wrapcheck // it says what it did
}

// Arena opens the store's arena once more, for processes that read objects by their offset. The
// caller closes it.
func (st *Store) Arena() (*shmstore.Segment, error) {
	return st.store.ArenaSegment() //nolint:wrapcheck // it says what it did
}

// SpaceBytes returns how many bytes of the store an object of size bytes takes, without header and
// alignment.
func (st *Store) SpaceBytes(size int) int { return st.writer.SpaceBytes(size) }

// Write makes an object of size bytes, at least 1, and calls fill to write them. It returns fill's
// error unchanged; other errors are [connector.ErrFull], which names the holders,
// [connector.ErrTooLarge], [connector.ErrClosed] and the context's.
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

// fillReservation calls fill. It aborts the reservation if fill fails or panics.
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

// Check returns the broken invariants of the store; there should be none.
func (st *Store) Check() (wrong []shmstore.Violation) {
	st.withStore(func(s *shmstore.Store) { wrong = s.Check() })
	return wrong
}

// withStore runs f in the writer actor, or in the caller's goroutine once the writer has stopped.
func (st *Store) withStore(f func(*shmstore.Store)) {
	if st.writer.Do(f) == nil {
		return
	}
	st.Stop() // wait until a stopping writer has ended
	st.mu.Lock()
	defer st.mu.Unlock()
	f(st.store)
}

// Stop stops the writer. Later and waiting calls of Write return [connector.ErrClosed].
func (st *Store) Stop() { _ = st.writer.Close(context.Background()) }

// Close releases the memory. While an object is held or being written its memory stays, and Close
// returns an error; a later call tries again.
func (st *Store) Close() error {
	st.Stop()
	_ = st.system.Close(context.Background()) // it has no stages to wait for
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := st.store.Close(); err != nil {
		return fmt.Errorf("ring: %w", err)
	}
	return nil
}

// closedChan is a channel that is closed: a request with it does not wait.
var closedChan = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// reserve waits for space. A request that succeeds at once sets up no deadline.
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

// requestSpace requests space of the writer, and maps its errors to those of package connector.
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

// fullError returns the reason why size bytes do not fit, with the holders of the space.
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
