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
	// Store is the store behind it.
	Store shmstore.Options
	// Timeout bounds how long a put waits for room. Default 30 s, or as long as the
	// context of the put says.
	Timeout time.Duration
	// TTL is how long a value may lie until somebody comes for it; zero is for
	// ever.
	TTL time.Duration
	// Log is told what was swept; nil discards.
	Log *slog.Logger
}

// A Ring is a table over a room of its own.
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

// Check returns what is wrong with the store; nothing ever should be.
func (r *Ring) Check() []shmstore.Violation { return r.store.Check() }

// Stats returns what lies in the ring.
func (r *Ring) Stats() Stats { return r.table.Stats() }

// Close ends the ring, after its ends. While a payload is held its memory stays,
// and the error says so; calling Close again tries again.
func (r *Ring) Close() error {
	r.table.Stop()
	return r.store.Close()
}
