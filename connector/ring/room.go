package ring

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

const defaultTimeout = 30 * time.Second

// A Room is a store whose writers wait for room. Any goroutine may use it.
type Room struct {
	timeout time.Duration
	told    bool // that timeout, by whoever made the room

	mu     sync.Mutex // of the store's writer, and of what is below
	store  *shmstore.Store
	room   chan struct{} // closed when there may be room; nil while nobody waits
	closed bool
}

// NewRoom makes a store. A put waits for room for as long as the timeout; zero is
// 30 s, or for longer where its context says until when.
func NewRoom(opts shmstore.Options, timeout time.Duration) (*Room, error) {
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
	r := &Room{timeout: timeout, told: told, store: store}
	store.OnRoom(r.onRoom)
	return r, nil
}

// An Object is a payload in a room, a [connector.Payload].
type Object struct {
	lease shmstore.Lease
	room  *Room
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
	lease, err := o.room.store.Local().Take(o.lease.Handle())
	if err != nil {
		return nil, fmt.Errorf("take what was shared: %w", err)
	}
	return &Object{lease: lease, room: o.room}, nil
}

// Offset is where the object begins in the room's [Room.Arena]. It is not for one
// with a segment of its own.
func (o *Object) Offset() int64 { return int64(o.lease.Handle().Offset) } //nolint:gosec // an arena is smaller

// Large reports whether the object has a segment of its own.
func (o *Object) Large() bool { return shmstore.IsLarge(o.lease.Handle()) }

// Segment opens the segment of an object that has one of its own once more. It is
// the caller's to close.
func (o *Object) Segment() (*shmstore.Segment, error) {
	o.room.mu.Lock()
	defer o.room.mu.Unlock()
	return o.room.store.ExposeLarge(o.lease.Handle()) //nolint:wrapcheck // it says what it did
}

// Arena opens the room's arena once more, for processes that read objects by
// their place in it. It is the caller's to close.
func (r *Room) Arena() (*shmstore.Segment, error) {
	return r.store.ArenaSegment() //nolint:wrapcheck // it says what it did
}

// Write makes an object of size bytes, which are more than none, and has fill
// write them. Its error is returned as it is; others are [connector.ErrFull], with
// who holds what, [connector.ErrTooLarge], [connector.ErrClosed] and the
// context's.
func (r *Room) Write(ctx context.Context, size int, fill func(dst []byte) error) (*Object, error) {
	reservation, err := r.reserve(ctx, size)
	if err != nil {
		return nil, err
	}
	if err := fillIn(&reservation, fill); err != nil {
		return nil, err
	}
	h, err := reservation.Commit(size, 1)
	if err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	lease, err := r.store.Local().Take(h)
	if err != nil {
		return nil, fmt.Errorf("take what was committed: %w", err)
	}
	return &Object{lease: lease, room: r}, nil
}

// fillIn gives the reservation back when its bytes cannot be written, even by a
// panic.
func fillIn(r *shmstore.Reservation, fill func(dst []byte) error) (err error) {
	written := false
	defer func() {
		if !written {
			r.Abort()
		}
	}()
	err = fill(r.Bytes())
	written = err == nil
	return err
}

// Check returns what is wrong with the store; nothing ever should be.
func (r *Room) Check() []shmstore.Violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.store.Check()
}

// Stats are the store's.
func (r *Room) Stats() shmstore.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.store.Stats()
}

// Stop lets nobody write any more; those who wait get [connector.ErrClosed].
func (r *Room) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.wake()
}

// Close gives the memory back. While an object is held or being written its memory
// stays, and the error says so; calling Close again tries again.
func (r *Room) Close() error {
	r.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.store.Close(); err != nil {
		return fmt.Errorf("ring: %w", err)
	}
	return nil
}

// onRoom runs where something was released, which may be under the lock of the
// room: it takes none.
func (r *Room) onRoom() {
	go func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.wake()
	}()
}

func (r *Room) wake() {
	if r.room != nil {
		r.store.WantRoom(false)
		close(r.room)
		r.room = nil
	}
}

// reserve waits for room. What finds room at once pays for no deadline.
func (r *Room) reserve(ctx context.Context, size int) (shmstore.Reservation, error) {
	reservation, room, err := r.tryReserve(size)
	if room == nil {
		return reservation, err
	}
	timeout := r.timeout
	if until, ok := ctx.Deadline(); ok && !r.told {
		timeout = max(timeout, time.Until(until))
	}
	patience, cancel := context.WithTimeoutCause(ctx, timeout, connector.ErrFull)
	defer cancel()
	for room != nil {
		select {
		case <-room:
			reservation, room, err = r.tryReserve(size)
		case <-patience.Done():
			if errors.Is(context.Cause(patience), connector.ErrFull) {
				return shmstore.Reservation{}, fmt.Errorf("%w within %v: %w", connector.ErrFull, timeout, err)
			}
			return shmstore.Reservation{}, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
	return reservation, err
}

// tryReserve returns what to wait for when there is no room.
func (r *Room) tryReserve(size int) (_ shmstore.Reservation, room <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return shmstore.Reservation{}, nil, connector.ErrClosed
	}
	reservation, err := r.store.Reserve(size, codec.IDRaw, 0)
	if !errors.Is(err, shmstore.ErrFull) {
		return reservation, nil, translate(err)
	}
	r.store.WantRoom(true)
	// What was released before the flag was raised rang no bell.
	if reservation, again := r.store.Reserve(size, codec.IDRaw, 0); again == nil {
		r.wake()
		r.store.WantRoom(false)
		return reservation, nil, nil
	}
	if r.room == nil {
		r.room = make(chan struct{})
	}
	return shmstore.Reservation{}, r.room, err
}

// translate says the store's errors in the connector's words.
func translate(err error) error {
	if errors.Is(err, shmstore.ErrTooLarge) {
		return fmt.Errorf("%w: %w", connector.ErrTooLarge, err)
	}
	return err
}
