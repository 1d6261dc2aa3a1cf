package bench

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/omnibus-runtime/omnibus/connector"
)

// bareFiles is the least that files do to hand values over: one process writes a
// file with a name, and the other reads and removes it. The memory that a value is
// encoded in, and that it is read into, is used again for the next one. There is no
// lock and no journal, a file is there before it is whole, and nobody removes what
// a process leaves that dies. It is for one value at a time.
type bareFiles struct {
	buffer []byte
}

const bareDirectory = "/dev/shm/"

func (b *bareFiles) room(size int) []byte {
	if cap(b.buffer) < size {
		b.buffer = make([]byte, size)
	}
	return b.buffer[:size]
}

// Put implements [connector.Transport].
func (b *bareFiles) Put(_ context.Context, _ connector.Edge, key string, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	room := b.room(size)
	if err := fill(room); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(bareDirectory+key, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(room)
	return connector.Metadata{}, errors.Join(err, f.Close())
}

// Get implements [connector.Transport].
func (b *bareFiles) Get(_ context.Context, _ connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	size, err := meta.Int("size")
	if err != nil {
		return nil, err
	}
	f, err := os.Open(bareDirectory + key)
	if err != nil {
		return nil, err
	}
	room := b.room(int(size))
	_, err = io.ReadFull(f, room)
	return barePayload(room), errors.Join(err, f.Close(), os.Remove(bareDirectory+key))
}

// Await implements [connector.Transport].
func (b *bareFiles) Await(context.Context, connector.Edge, string, connector.Metadata) (connector.Payload, error) {
	return nil, errors.ErrUnsupported
}

// Cleanup implements [connector.Transport].
func (b *bareFiles) Cleanup(context.Context, string) error { return nil }

// Close implements [connector.Transport].
func (b *bareFiles) Close() error { return nil }

type barePayload []byte

func (p barePayload) Bytes() []byte { return p }
func (p barePayload) Release()      {}
