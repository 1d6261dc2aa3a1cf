package bus

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// exchangeRoom is the memory of what this process puts into an exchange. It is
// made when it is needed first.
type exchangeRoom struct {
	opts shmstore.Options

	mu      sync.Mutex
	room    *ring.Room
	arena   *ledger.Segment // of the room; nil: no other process can read it
	closed  bool
	putting sync.WaitGroup // added to under mu, while not closed
}

// exchangeLargeBytes is the default for the large objects of such a room together.
const exchangeLargeBytes = 1 << 30

// put makes a payload of size bytes, which fill writes, with one reference, and
// places it; place takes it over. One of at most inline bytes is on the heap.
func (r *exchangeRoom) put(ctx context.Context, size, inline int, fill func(dst []byte) error, place func(*ledger.Payload) error) error {
	if size <= inline {
		data := make([]byte, size)
		if err := fill(data); err != nil {
			return err
		}
		return place(ledger.OnHeap(data, func() {}))
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
func (r *exchangeRoom) takes(size, inline int) int64 {
	if size > inline {
		if room, _, err := r.open(); err == nil {
			defer r.putting.Done()
			size = room.RoomBytes(size)
		}
	}
	return int64(size)
}

// payloadOf makes an object of a room a payload.
func payloadOf(o *ring.Object, arena *ledger.Segment) (*ledger.Payload, error) {
	switch {
	case arena == nil:
		return ledger.OnHeap(o.Bytes(), o.Release), nil
	case !o.Large():
		return arena.Payload(o.Offset(), len(o.Bytes()), o.Release), nil
	}
	mem, err := o.Segment()
	if err != nil {
		return nil, err
	}
	return ledger.AloneIn(mem, len(o.Bytes()), o.Release), nil
}

// open returns the room, for somebody who puts.
func (r *exchangeRoom) open() (*ring.Room, *ledger.Segment, error) {
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

func (r *exchangeRoom) create() error {
	opts := r.opts
	opts.MaxLargeBytes = cmp.Or(opts.MaxLargeBytes, exchangeLargeBytes)
	room, err := ring.NewRoom(opts, 0)
	if err != nil {
		return err
	}
	mem, err := room.Arena()
	switch {
	case err == nil:
		r.arena = ledger.Lasting(mem, nil)
	case !errors.Is(err, shmstore.ErrUnsupported):
		return errors.Join(err, room.Close())
	}
	r.room = room
	return nil
}

// stop lets nobody put any more: whatever is released from here on is not
// written over.
func (r *exchangeRoom) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.room != nil {
		r.room.Stop()
	}
}

// close gives the memory back, once nobody puts. What others have mapped stays.
func (r *exchangeRoom) close(ctx context.Context) error {
	r.stop()
	if err := waitFor(ctx, &r.putting); err != nil {
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

// waitFor waits for a group that nobody joins any more, until the context ends.
func waitFor(ctx context.Context, wg *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
