package ring

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Options configure a ring. The zero value works.
type Options struct {
	// Store configures the store.
	Store shmstore.Options
	// Timeout bounds how long a put waits for space. Default 30 s, or until the deadline of the
	// put's context, if that is later.
	Timeout time.Duration
	// TTL is how long a value stays in the ring without being got; zero is for ever.
	TTL time.Duration
	// Log receives the values that were swept; nil discards.
	Log *slog.Logger
}

// A Ring is a table over its own store.
type Ring struct {
	table *Table
	store *Store
}

// New makes an empty ring.
func New(opts Options) (*Ring, error) {
	if opts.TTL < 0 {
		return nil, fmt.Errorf("%w: a ring's TTL is not negative", connector.ErrSettings)
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	room, err := NewStore(opts.Store, opts.Timeout)
	if err != nil {
		return nil, err
	}
	return &Ring{table: NewTable(opts.TTL, opts.Log), store: room}, nil
}

// End opens an end, which is a transport.
func (r *Ring) End() *End {
	return &End{ring: r, owner: r.table.Owner(""), done: make(chan struct{})}
}

// Check returns the broken invariants of the store; there should be none.
func (r *Ring) Check() []shmstore.Violation { return r.store.Check() }

// Stats returns the figures of the table.
func (r *Ring) Stats() Stats { return r.table.Stats() }

// Close closes the ring, after its ends. While a payload is held its memory stays, and Close
// returns an error; a later call tries again.
func (r *Ring) Close() error {
	r.table.Stop()
	return r.store.Close()
}
