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
type Room struct {
	timeout time.Duration
	told    bool // that timeout, by the caller of NewRoom

	system   *actors.System
	writer   *actors.Writer
	producer *actors.Producer
	mu       lockorder.Mutex[lockorder.RingRoom] // takes the writer's place when the writer has stopped
	store    *shmstore.Store
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
	system := actors.NewSystem(actors.Options{})
	writer := system.NewWriter(store)
	return &Room{timeout: timeout, told: told, system: system, writer: writer, producer: writer.NewProducer(), store: store}, nil
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
func (o *Object) Segment() (mem *shmstore.Segment, err error) {
	o.room.do(func(s *shmstore.Store) { mem, err = s.ExposeLarge(o.lease.Handle()) })
	return mem, err //nolint:wrapcheck // it says what it did
}

// Arena opens the room's arena once more, for processes that read objects by
// their place in it. It is the caller's to close.
func (r *Room) Arena() (*shmstore.Segment, error) {
	return r.store.ArenaSegment() //nolint:wrapcheck // it says what it did
}

// RoomBytes is how many bytes of the store an object of size bytes takes, header and
// alignment apart.
func (r *Room) RoomBytes(size int) int { return r.writer.SpaceBytes(size) }

// Write makes an object of size bytes, which are more than none, and has fill
// write them. Its error is returned as it is; others are [connector.ErrFull], with
// who holds what, [connector.ErrTooLarge], [connector.ErrClosed] and the
// context's.
func (r *Room) Write(ctx context.Context, size int, fill func(dst []byte) error) (*Object, error) {
	reservation, err := r.reserve(ctx, size)
	if err != nil {
		return nil, err
	}
	if err := fillIn(&reservation, size, fill); err != nil {
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
func fillIn(r *shmstore.Reservation, size int, fill func(dst []byte) error) (err error) {
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
func (r *Room) Check() (wrong []shmstore.Violation) {
	r.do(func(s *shmstore.Store) { wrong = s.Check() })
	return wrong
}

// do runs f in the writer's place, which is the caller's when the writer has stopped.
func (r *Room) do(f func(*shmstore.Store)) {
	if r.writer.Do(f) == nil {
		return
	}
	r.Stop() // a writer that stops is still at work
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.store)
}

// Stop lets nobody write any more; those who wait get [connector.ErrClosed].
func (r *Room) Stop() { _ = r.writer.Close(context.Background()) }

// Close gives the memory back. While an object is held or being written its memory
// stays, and the error says so; calling Close again tries again.
func (r *Room) Close() error {
	r.Stop()
	_ = r.system.Close(context.Background()) // it has no stages that could hold it up
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.store.Close(); err != nil {
		return fmt.Errorf("ring: %w", err)
	}
	return nil
}

// atOnce is a wait that is over before it begins.
var atOnce = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// reserve waits for room. What finds room at once pays for no deadline.
func (r *Room) reserve(ctx context.Context, size int) (shmstore.Reservation, error) {
	reservation, err := r.ask(atOnce, nil, size)
	if !errors.Is(err, actors.ErrCanceled) {
		return reservation, err
	}
	timeout := r.timeout
	if until, ok := ctx.Deadline(); ok && !r.told {
		timeout = max(timeout, time.Until(until))
	}
	patience, cancel := context.WithTimeoutCause(ctx, timeout, connector.ErrFull)
	defer cancel()
	reservation, err = r.ask(nil, patience.Done(), size)
	switch {
	case !errors.Is(err, actors.ErrCanceled):
		return reservation, err
	case errors.Is(context.Cause(patience), connector.ErrFull):
		return reservation, fmt.Errorf("%w within %v: %w", connector.ErrFull, timeout, r.full(size))
	}
	return reservation, fmt.Errorf("%w: %w", ctx.Err(), r.full(size))
}

// ask asks the writer for room, and says its errors in the connector's words.
func (r *Room) ask(done, cancel <-chan struct{}, size int) (shmstore.Reservation, error) {
	reservation, err := r.producer.Reserve(done, cancel, size, codec.IDRaw)
	switch {
	case errors.Is(err, shmstore.ErrTooLarge):
		err = fmt.Errorf("%w: %w", connector.ErrTooLarge, err)
	case errors.Is(err, actors.ErrStopped):
		err = connector.ErrClosed
	}
	return reservation, err
}

// full says why there is no room for so many bytes, and who holds what.
func (r *Room) full(size int) (err error) {
	r.do(func(s *shmstore.Store) {
		var got []shmstore.Reservation
		if got, err = s.ReserveAhead(nil, 1, size, codec.IDRaw, 0); err == nil {
			got[0].Abort()
			err = fmt.Errorf("%w: puts that came before wait for room", shmstore.ErrFull)
		}
	})
	return err
}
