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

// NewRoom makes room with these settings, when it is needed first.
func NewRoom(opts shmstore.Options) *Room { return &Room{opts: opts} }

// Room is the memory of what one process puts into an exchange. It is
// made when it is needed first.
type Room struct {
	opts shmstore.Options

	mu      lockorder.Mutex[lockorder.ExchangeRoom]
	room    *ring.Store
	arena   *accounts.Segment // of the room; nil: no other process can read it
	closed  bool
	putting sync.WaitGroup // added to under mu, while not closed
}

// largeBytes is the default for the large objects of such a room together.
const largeBytes = 1 << 30

// Put makes a payload of size bytes, which fill writes, with one reference, and
// places it; place takes it over. One of at most inline bytes is on the heap.
func (r *Room) Put(ctx context.Context, size, inline int, fill func(dst []byte) error, place func(*accounts.Payload) error) error {
	if size <= inline {
		data := make([]byte, size)
		if err := fill(data); err != nil {
			return err
		}
		return place(accounts.OnHeap(data, func() {}))
	}
	room, arena, err := r.open()
	if err != nil {
		return err
	}
	defer r.putting.Done()
	o, err := room.Write(ctx, size, fill)
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

// takes is how many bytes a payload of size bytes takes, where there is room at all.
func (r *Room) takes(size, inline int) int64 {
	if size > inline {
		if room, _, err := r.open(); err == nil {
			defer r.putting.Done()
			size = room.SpaceBytes(size)
		}
	}
	return int64(size)
}

// payloadOf makes an object of a room a payload.
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

// Memory is where its values lie that other processes can read; nil: nothing does yet.
func (r *Room) Memory() *accounts.Segment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.arena
}

// open returns the room, for a put, which ends with putting.Done.
func (r *Room) open() (*ring.Store, *accounts.Segment, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, connector.ErrClosed
	}
	if r.room == nil {
		if err := r.create(); err != nil {
			return nil, nil, err
		}
	}
	r.putting.Add(1)
	return r.room, r.arena, nil
}

func (r *Room) create() error {
	opts := r.opts
	opts.MaxLargeBytes = cmp.Or(opts.MaxLargeBytes, largeBytes)
	room, err := ring.NewStore(opts, 0)
	if err != nil {
		return err
	}
	mem, err := room.Arena()
	switch {
	case err == nil:
		r.arena = accounts.Lasting(mem, nil)
	case !errors.Is(err, shmstore.ErrUnsupported):
		return errors.Join(err, room.Close())
	}
	r.room = room
	return nil
}

// Stop lets no value be put any more: a value that is released from here on is not
// written over.
func (r *Room) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.room != nil {
		r.room.Stop()
	}
}

// Close gives the memory back, once no value is being put. What others have mapped stays.
func (r *Room) Close(ctx context.Context) error {
	r.Stop()
	if err := waiting.For(ctx, &r.putting); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.room == nil {
		return nil
	}
	if r.arena != nil {
		r.arena.Release()
		r.arena = nil
	}
	return r.room.Close()
}
