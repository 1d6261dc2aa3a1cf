package ring

import (
	"context"
	"fmt"
	"sync"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// An End is one end of a ring, and a transport.
type End struct {
	ring  *Ring
	owner *Owner
	once  sync.Once
	done  chan struct{}
}

var _ connector.Transport = (*End)(nil)

// Put implements [connector.Transport].
func (e *End) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	payload, err := e.write(ctx, size, fill)
	if err != nil {
		return nil, err
	}
	if err := e.owner.Put(edge, key, payload); err != nil {
		return nil, err
	}
	return connector.Metadata{}, nil
}

// write brings a payload into the store.
func (e *End) write(ctx context.Context, size int, fill func(dst []byte) error) (connector.Payload, error) {
	if e.closed() {
		return nil, connector.ErrClosed
	}
	if size == 0 { // the store keeps no objects of no bytes
		return nothing{}, fill(nil)
	}
	reservation, err := e.ring.reserve(ctx, size)
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
	lease, err := e.ring.store.Local().Take(h)
	if err != nil {
		return nil, fmt.Errorf("take what was committed: %w", err)
	}
	return &leased{lease}, nil
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

// Get implements [connector.Transport].
func (e *End) Get(_ context.Context, edge connector.Edge, key string, _ connector.Metadata) (connector.Payload, error) {
	if e.closed() {
		return nil, connector.ErrClosed
	}
	return e.ring.table.Get(edge, key)
}

// Await implements [connector.Transport].
func (e *End) Await(ctx context.Context, edge connector.Edge, key string, _ connector.Metadata) (connector.Payload, error) {
	if e.closed() {
		return nil, connector.ErrClosed
	}
	return e.ring.table.Await(ctx, e.done, edge, key)
}

// Cleanup implements [connector.Transport].
func (e *End) Cleanup(_ context.Context, key string) error {
	if e.closed() {
		return connector.ErrClosed
	}
	e.owner.Cleanup(key)
	return nil
}

// Close implements [connector.Transport].
func (e *End) Close() error {
	e.once.Do(func() {
		close(e.done)
		e.owner.Close()
	})
	return nil
}

func (e *End) closed() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// leased is a payload in the store.
type leased struct{ lease shmstore.Lease }

func (l *leased) Bytes() []byte { return l.lease.Bytes() }
func (l *leased) Release()      { l.lease.Release() }

// nothing is a payload of no bytes.
type nothing struct{}

func (nothing) Bytes() []byte { return nil }
func (nothing) Release()      {}
