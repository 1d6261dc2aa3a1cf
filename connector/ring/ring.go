package ring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Options configure a ring. The zero value works.
type Options struct {
	// Store is the store behind it.
	Store shmstore.Options
	// Timeout bounds how long a put waits for room. Default 30 s.
	Timeout time.Duration
	// TTL is how long a value may lie until somebody comes for it; zero is for
	// ever.
	TTL time.Duration
	// Log is told what was swept; nil discards.
	Log *slog.Logger
}

const defaultTimeout = 30 * time.Second

// A Ring is a table over a store of its own.
type Ring struct {
	table   *Table
	timeout time.Duration

	mu     sync.Mutex // of the store's writer, and of what is below
	store  *shmstore.Store
	room   chan struct{} // closed when there may be room; nil while nobody waits
	closed bool
}

// New makes an empty ring.
func New(opts Options) (*Ring, error) {
	if opts.Timeout < 0 || opts.TTL < 0 {
		return nil, fmt.Errorf("%w: a ring's timeout and TTL are not negative", connector.ErrSettings)
	}
	if opts.Timeout == 0 {
		opts.Timeout = defaultTimeout
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	store, err := shmstore.Create(opts.Store)
	if err != nil {
		return nil, fmt.Errorf("ring: %w", err)
	}
	r := &Ring{table: NewTable(opts.TTL, opts.Log), timeout: opts.Timeout, store: store}
	store.OnRoom(r.onRoom)
	return r, nil
}

// End opens an end, which is a transport.
func (r *Ring) End() *End {
	return &End{ring: r, owner: r.table.Owner(), done: make(chan struct{})}
}

// Check returns what is wrong with the store; nothing ever should be.
func (r *Ring) Check() []shmstore.Violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.store.Check()
}

// Len returns the number of values that nobody has got yet.
func (r *Ring) Len() int { return r.table.Len() }

// Close ends the ring, after its ends. While a payload is held its memory stays,
// and the error says so; calling Close again tries again.
func (r *Ring) Close() error {
	r.table.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.wake()
	if err := r.store.Close(); err != nil {
		return fmt.Errorf("ring: %w", err)
	}
	return nil
}

// onRoom runs where something was released, which may be under the lock of the
// ring: it takes none.
func (r *Ring) onRoom() {
	go func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.wake()
	}()
}

func (r *Ring) wake() {
	if r.room != nil {
		r.store.WantRoom(false)
		close(r.room)
		r.room = nil
	}
}

// reserve waits for room.
func (r *Ring) reserve(ctx context.Context, size int) (shmstore.Reservation, error) {
	patience, cancel := context.WithTimeoutCause(ctx, r.timeout, connector.ErrFull)
	defer cancel()
	for {
		reservation, room, err := r.tryReserve(size)
		if room == nil {
			return reservation, err
		}
		select {
		case <-room:
		case <-patience.Done():
			if errors.Is(context.Cause(patience), connector.ErrFull) {
				return shmstore.Reservation{}, fmt.Errorf("%w within %v: %w", connector.ErrFull, r.timeout, err)
			}
			return shmstore.Reservation{}, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// tryReserve returns what to wait for when there is no room.
func (r *Ring) tryReserve(size int) (_ shmstore.Reservation, room <-chan struct{}, err error) {
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
