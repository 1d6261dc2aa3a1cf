package shm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// ownRing is the ring of a process that is attached to no host.
var ownRing process

// process keeps one ring while it has references.
type process struct {
	mu   sync.Mutex
	ring *ring.Ring
	opts settings
	refs int // open transports, running puts, and values that were not released
}

// settings are the values that all connectors of the process agree on.
type settings struct {
	bytes        int64
	ttl, timeout time.Duration
}

func (p *process) open(config connector.Config) (connector.Transport, error) {
	s := settings{config.Settings.Int(optRing), config.Settings.Duration(optTTL), config.Settings.Duration(optTimeout)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ring == nil {
		r, err := ring.New(ring.Options{
			Store: shmstore.Options{ArenaBytes: s.bytes}, TTL: s.ttl, Timeout: s.timeout, Log: config.Log,
		})
		if err != nil {
			return nil, err //nolint:wrapcheck // it says what it did
		}
		p.ring, p.opts = r, s
	}
	if p.opts != s {
		return nil, fmt.Errorf("%w: this process has a ring of %d bytes already: all its connectors of this type agree on %s, %s and %s",
			connector.ErrSettings, p.opts.bytes, optRing, optTTL, optTimeout)
	}
	p.refs++
	return &end{End: p.ring.End(), process: p}, nil
}

// release drops a reference, and closes the ring with the last one.
func (p *process) release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refs--; p.refs > 0 {
		return nil
	}
	r := p.ring
	p.ring = nil
	return r.Close() //nolint:wrapcheck // it says what it did
}

// end is an end of the process's ring.
type end struct {
	*ring.End
	process *process
	closed  bool // guarded by the process's lock
}

// Put implements [connector.Transport]. It retains the ring while it writes.
func (e *end) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func(dst []byte) error) (meta connector.Metadata, err error) {
	if !e.retain() {
		return nil, connector.ErrClosed
	}
	defer func() { err = errors.Join(err, e.process.release()) }()
	meta, err = e.End.Put(ctx, edge, key, size, fill)
	if errors.Is(err, connector.ErrTooLarge) {
		return nil, fmt.Errorf("%w: raise %s, which is %d", err, optRing, e.process.opts.bytes)
	}
	return meta, err
}

// Get implements [connector.Transport].
func (e *end) Get(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return e.getRetained(func() (connector.Payload, error) { return e.End.Get(ctx, edge, key, meta) })
}

// Await implements [connector.Transport].
func (e *end) Await(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return e.getRetained(func() (connector.Payload, error) { return e.End.Await(ctx, edge, key, meta) })
}

// Peek implements [connector.Peeker].
func (e *end) Peek(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return e.getRetained(func() (connector.Payload, error) { return e.End.Peek(ctx, edge, key, meta) })
}

// getRetained gets a value that retains the ring. The reference exists before the get, so that a
// concurrent Close does not close the ring under the value.
func (e *end) getRetained(get func() (connector.Payload, error)) (connector.Payload, error) {
	if !e.retain() {
		return nil, connector.ErrClosed
	}
	got, err := get()
	if err != nil {
		return nil, errors.Join(err, e.process.release())
	}
	return &value{Payload: got, process: e.process}, nil
}

// retain adds a reference to the ring, unless this end is closed.
func (e *end) retain() bool {
	e.process.mu.Lock()
	defer e.process.mu.Unlock()
	if !e.closed {
		e.process.refs++
	}
	return !e.closed
}

// Close implements [connector.Transport].
func (e *end) Close() error {
	err := e.End.Close()
	e.process.mu.Lock()
	again := e.closed
	e.closed = true
	e.process.mu.Unlock()
	if again {
		return err
	}
	return errors.Join(err, e.process.release())
}

// value is a payload that retains the ring.
type value struct {
	connector.Payload
	process *process
}

// Release implements [connector.Payload].
func (v *value) Release() {
	v.Payload.Release()
	_ = v.process.release() // an error would mean a held payload: there is none
}
