package ring

import (
	"context"
	"sync"

	"github.com/omnibus-runtime/omnibus/connector"
)

// An End is one end of a ring, and a transport.
type End struct {
	ring  *Ring
	owner *Owner
	once  sync.Once
	done  chan struct{}
}

var (
	_ connector.Transport = (*End)(nil)
	_ connector.Peeker    = (*End)(nil)
)

// Put implements [connector.Transport].
func (e *End) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	payload, err := e.write(ctx, size, fill)
	if err != nil {
		return nil, err
	}
	number, err := e.owner.Put(edge, key, payload)
	if err != nil {
		return nil, err
	}
	return Metadata(number), nil
}

// write writes a payload into the store.
func (e *End) write(ctx context.Context, size int, fill func(dst []byte) error) (connector.Payload, error) {
	if e.isClosed() {
		return nil, connector.ErrClosed
	}
	if size == 0 { // the store has no empty objects
		return emptyPayload{}, fill(nil)
	}
	o, err := e.ring.store.Write(ctx, size, fill)
	if err != nil {
		return nil, err
	}
	return o, nil
}

// Get implements [connector.Transport].
func (e *End) Get(_ context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	number, err := e.number(meta)
	if err != nil {
		return nil, err
	}
	return payload(e.ring.table.Get(edge, key, number))
}

// Peek implements [connector.Peeker].
func (e *End) Peek(_ context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	number, err := e.number(meta)
	if err != nil {
		return nil, err
	}
	return e.ring.table.Peek(edge, key, number)
}

// Await implements [connector.Transport].
func (e *End) Await(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	number, err := e.number(meta)
	if err != nil {
		return nil, err
	}
	return payload(e.ring.table.Await(ctx, e.done, edge, key, number))
}

// number returns the entry's number in the metadata, or ErrClosed for a closed end.
func (e *End) number(meta connector.Metadata) (uint64, error) {
	if e.isClosed() {
		return 0, connector.ErrClosed
	}
	return Number(meta)
}

func payload(got Taken, err error) (connector.Payload, error) {
	if err != nil {
		return nil, err
	}
	return got, nil
}

// Cleanup implements [connector.Transport].
func (e *End) Cleanup(_ context.Context, key string) error {
	if e.isClosed() {
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

func (e *End) isClosed() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// emptyPayload is a payload of no bytes.
type emptyPayload struct{}

func (emptyPayload) Bytes() []byte                     { return nil }
func (emptyPayload) Release()                          {}
func (emptyPayload) Share() (connector.Payload, error) { return emptyPayload{}, nil }
