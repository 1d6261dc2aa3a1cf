package exchange

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/waiting"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// NewValueStore returns a store with these options. It makes the memory at the first put.
func NewValueStore(opts shmstore.Options) *ValueStore { return &ValueStore{opts: opts} }

// ValueStore is the memory for the values that one process puts into an exchange. The
// memory is made at the first put.
type ValueStore struct {
	opts shmstore.Options

	mu      lockorder.Mutex[lockorder.ValueStore]
	ring    *ring.Store
	arena   *accounts.Segment // of ring; nil: no other process can read it
	closed  bool
	putting sync.WaitGroup // added to under mu, while not closed
}

// largeBytes is the default bound for all large objects of a store together.
const largeBytes = 1 << 30

// Put makes a payload of size bytes, which fill writes, with one reference, and calls
// place, which owns the payload. A payload of at most inline bytes is on the heap.
func (r *ValueStore) Put(ctx context.Context, size, inline int, fill func(dst []byte) error, place func(*accounts.Payload) error) error {
	if size <= inline {
		data := make([]byte, size)
		if err := fill(data); err != nil {
			return err
		}
		return place(accounts.OnHeap(data, func() {}))
	}
	store, arena, err := r.beginPut()
	if err != nil {
		return err
	}
	defer r.putting.Done()
	o, err := store.Write(ctx, size, fill)
	if err != nil {
		return err
	}
	p, err := payloadOf(o, arena)
	if err != nil {
		o.Release()
		return err
	}
	return place(p)
}

// spaceBytes is how many bytes of the store a payload of size bytes takes.
func (r *ValueStore) spaceBytes(size, inline int) int64 {
	if size > inline {
		if store, _, err := r.beginPut(); err == nil {
			defer r.putting.Done()
			size = store.SpaceBytes(size)
		}
	}
	return int64(size)
}

// payloadOf makes a payload of an object of the store.
func payloadOf(o *ring.Object, arena *accounts.Segment) (*accounts.Payload, error) {
	switch {
	case arena == nil:
		return accounts.OnHeap(o.Bytes(), o.Release), nil
	case !o.Large():
		return arena.Payload(o.Offset(), len(o.Bytes()), o.Release), nil
	}
	mem, err := o.Segment()
	if err != nil {
		return nil, err
	}
	return accounts.AloneIn(mem, len(o.Bytes()), o.Release), nil
}

// Memory is the segment of the values that other processes can read; nil: there is none yet.
func (r *ValueStore) Memory() *accounts.Segment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.arena
}

// beginPut returns the memory for a put, and makes it at the first. The caller ends the put
// with putting.Done.
func (r *ValueStore) beginPut() (*ring.Store, *accounts.Segment, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, connector.ErrClosed
	}
	if r.ring == nil {
		if err := r.create(); err != nil {
			return nil, nil, err
		}
	}
	r.putting.Add(1)
	return r.ring, r.arena, nil
}

func (r *ValueStore) create() error {
	opts := r.opts
	opts.MaxLargeBytes = cmp.Or(opts.MaxLargeBytes, largeBytes)
	store, err := ring.NewStore(opts, 0)
	if err != nil {
		return err
	}
	mem, err := store.Arena()
	switch {
	case err == nil:
		r.arena = accounts.Lasting(mem, nil)
	case !errors.Is(err, shmstore.ErrUnsupported):
		return errors.Join(err, store.Close())
	}
	r.ring = store
	return nil
}

// Stop refuses new values: the memory of a value that is released from here on is not
// used again.
func (r *ValueStore) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.ring != nil {
		r.ring.Stop()
	}
}

// Close waits until no value is being put, and gives the memory back. Mappings in other
// processes stay. The error is the cause of ctx if that ends first.
func (r *ValueStore) Close(ctx context.Context) error {
	r.Stop()
	if err := waiting.For(ctx, &r.putting); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ring == nil {
		return nil
	}
	if r.arena != nil {
		r.arena.Release()
		r.arena = nil
	}
	return r.ring.Close()
}
