package segment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

// Put implements [connector.Transport].
func (t *Transport) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	if err := t.enter(); err != nil {
		return nil, err
	}
	defer t.leave()
	byKey := t.opts.Generation == ByKey
	if size == 0 || !byKey && int64(size) <= t.opts.InlineBytes {
		return connector.Inline(size, fill)
	}
	if err := checkName(key); err != nil && byKey {
		return nil, err
	}
	fd, err := t.write(size, fill)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	f, err := described(fd)
	if err != nil {
		return nil, err
	}
	e := &entry{record: record{purpose: putting, name: key, segment: f.identity}, edge: edge, key: key, size: int64(size)}
	err = t.patiently(ctx, t.done, func() error {
		if byKey {
			return t.publish(e, fd)
		}
		return t.publishAnonymous(e, fd)
	})
	if err != nil {
		return nil, err
	}
	faultpoint.Hit("segment-put")
	return connector.Metadata{"shm": map[string]any{"name": e.name, "size": size}, "size": size}, nil
}

// write makes a segment that nobody can see yet. Its memory is there before the
// first byte is written: what has none is refused here, and not by a signal.
func (t *Transport) write(size int, fill func(dst []byte) error) (fd int, err error) {
	if err := t.memory.check(size); err != nil {
		return -1, err
	}
	fd, err = t.dir.create()
	if err != nil {
		return -1, err
	}
	written := false
	defer func() { // also when fill panics
		if !written {
			_ = unix.Close(fd)
		}
	}()
	if err := allocate(fd, size); err != nil {
		return -1, err
	}
	faultpoint.Hit("segment-allocated")
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return -1, fmt.Errorf("map: %w", full(err))
	}
	defer func() { _ = unix.Munmap(b) }()
	err = fill(b[:size:size])
	written = err == nil
	faultpoint.Hit("segment-filled")
	return fd, err
}

func allocate(fd, size int) error {
	const most = 64 // signals that interrupt it; it makes no progress in between
	for range most {
		err := unix.Fallocate(fd, 0, 0, int64(size))
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("allocate %d bytes: %w", size, full(err))
		}
	}
	return unix.EINTR
}

// publish gives a segment its key for a name, under the lock, in place of what had
// that name.
func (t *Transport) publish(e *entry, fd int) (err error) {
	l, err := t.dir.lockFor(e.name)
	if err != nil {
		return err
	}
	defer l.unlock()
	e.lock = l.id
	if e.row, err = t.journal.add(e.record); err != nil {
		return err
	}
	faultpoint.Hit("segment-put-recorded")
	made := !l.linked
	if err := l.link(); err != nil {
		t.journal.clear(e.row)
		return err
	}
	faultpoint.Hit("segment-put-locked")
	if err := t.place(fd, e.name); err != nil {
		if made {
			l.remove()
		}
		t.journal.clear(e.row)
		return err
	}
	faultpoint.Hit("segment-put-linked")
	t.hold(e)
	return nil
}

// place links a segment, and replaces what has its name.
func (t *Transport) place(fd int, name string) error {
	const most = 16 // writers without a lock that come between
	for range most {
		err := t.dir.link(fd, name)
		if !errors.Is(err, fs.ErrExist) {
			return full(err)
		}
		now, err := t.dir.lookup(name)
		if err == nil {
			err = now.check()
		}
		if err == nil {
			err = t.dir.unlink(name)
		}
		if err != nil && !missing(err) {
			return err
		}
		faultpoint.Hit("segment-put-replacing")
	}
	return fmt.Errorf("%w: somebody keeps making a segment of this name without its lock", connector.ErrBusy)
}

// publishAnonymous gives a segment a name without a meaning.
func (t *Transport) publishAnonymous(e *entry, fd int) (err error) {
	e.name = anonymous()
	if e.row, err = t.journal.add(e.record); err != nil {
		return err
	}
	faultpoint.Hit("segment-put-recorded")
	if err := t.dir.link(fd, e.name); err != nil {
		t.journal.clear(e.row)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%w: it has the name", connector.ErrBusy)
		}
		return full(err)
	}
	faultpoint.Hit("segment-put-linked")
	t.hold(e)
	return nil
}

// lookEvery is how many bytes are taken between two looks at the free memory: a look
// costs as much as a small value.
const lookEvery = 1 << 20

// memory refuses what the machine has no room for.
type memory struct {
	probe headroom.Probe
	mu    sync.Mutex
	taken int64 // since the last look
}

func (m *memory) check(size int) error {
	m.mu.Lock()
	m.taken += int64(size)
	look := m.taken >= lookEvery
	if look {
		m.taken = 0
	}
	m.mu.Unlock()
	if !look {
		return nil
	}
	if short := m.probe.Check(uint64(size)); short != nil { //nolint:gosec // a length
		return fmt.Errorf("%w: %d bytes needed, %d available by %s of which %d are kept back",
			connector.ErrFull, size, short.AvailableBytes, short.Limit, short.KeepBytes)
	}
	return nil
}
