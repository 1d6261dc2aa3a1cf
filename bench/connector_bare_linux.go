package bench

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
)

// bareFiles is the least that files do to hand values over: one process writes a
// file with a name, and the other reads and removes it. The memory that a value is
// encoded in, and that it is read into, is used again for the next one. There is no
// lock and no journal, a file is there before it is whole, and nobody removes what
// a process leaves that dies. It is for one value at a time.
type bareFiles struct {
	locked bool // both lock the file beside it that the format of segments has for each value
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
	unlock, err := b.lock(key, unix.O_CREAT)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(bareDirectory+key, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, errors.Join(err, unlock())
	}
	_, err = f.Write(room)
	return connector.Metadata{}, errors.Join(err, f.Close(), unlock())
}

// lockOf is where the lock of a value is.
func lockOf(key string) string { return bareDirectory + "shm_" + key + "_lockfile.lock" }

// lock locks a value, if values have locks. It does without os.File, which asks more of
// the system.
func (b *bareFiles) lock(key string, flags int) (unlock func() error, err error) {
	if !b.locked {
		return func() error { return nil }, nil
	}
	fd, err := unix.Open(lockOf(key), unix.O_RDWR|unix.O_CLOEXEC|flags, 0o600)
	if err != nil {
		return nil, err
	}
	unlock = func() error { return unix.Close(fd) }
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, unlock())
	}
	return unlock, nil
}

// remove removes a value, and its lock.
func (b *bareFiles) remove(key string) error {
	err := os.Remove(bareDirectory + key)
	if b.locked {
		err = errors.Join(err, os.Remove(lockOf(key)))
	}
	return err
}

// Get implements [connector.Transport].
func (b *bareFiles) Get(_ context.Context, _ connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	size, err := meta.Int("size")
	if err != nil {
		return nil, err
	}
	unlock, err := b.lock(key, 0)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(bareDirectory + key)
	if err != nil {
		return nil, errors.Join(err, unlock())
	}
	room := b.room(int(size))
	_, err = io.ReadFull(f, room)
	return barePayload(room), errors.Join(err, f.Close(), b.remove(key), unlock())
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
