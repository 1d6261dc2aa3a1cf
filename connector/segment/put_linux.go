package segment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

// Put implements [connector.Transport].
func (t *Transport) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	if err := t.beginOperation(); err != nil {
		return nil, err
	}
	defer t.endOperation()
	byKey := t.opts.Generation == ByKey
	if size == 0 || int64(size) <= t.opts.InlineBytes {
		return connector.Inline(size, fill)
	}
	if err := checkName(key); err != nil && byKey {
		return nil, err
	}
	b, err := t.write(size, fill)
	if err != nil {
		return nil, err
	}
	e := &entry{record: record{purpose: putting, name: key, segment: b.id}, edge: edge, key: key, size: int64(size)}
	err = t.retryBusy(ctx, t.done, func() error {
		if byKey {
			return t.publish(e, b.fd)
		}
		return t.publishAnonymous(e, b.fd)
	})
	if err != nil {
		t.spares.remove(b)
		return nil, err
	}
	t.spares.addGiven(b, e)
	faultpoint.Hit("segment-put")
	return connector.Metadata{"shm": map[string]any{"name": e.name, "size": size}, "size": size}, nil
}

// maxCopied is the size of the largest segment that is written from private memory of the same
// size.
const maxCopied = 64 << 20

// write makes a segment without a name. It drops spares if it needs their space.
func (t *Transport) write(size int, fill func(dst []byte) error) (*valueFile, error) {
	b, err := t.spares.get(t.dir, int64(size))
	if err != nil {
		return nil, err
	}
	written := false
	defer func() { // also when fill panics
		if !written {
			t.spares.remove(b)
		}
	}()
	err = t.spares.retryWithoutSpares(func() error { return t.memory.check(max(size-int(b.size), 0)) })
	if err != nil {
		return nil, err
	}
	if size <= maxCopied {
		err = t.fillCopied(b, size, fill)
	} else {
		err = t.fillMapped(b, size, fill)
	}
	written = err == nil
	faultpoint.Hit("segment-filled")
	return b, err
}

// fillCopied writes a segment from private memory, which is cheaper than mapping it: the kernel
// need not clear the pages first, nor remove them from other processors' tables afterwards.
func (t *Transport) fillCopied(b *valueFile, size int, fill func(dst []byte) error) error {
	from := getBuffer(size)
	defer from.Release()
	if err := fill(from.Bytes()); err != nil {
		return err
	}
	faultpoint.Hit("segment-allocated")
	if b.size > int64(size) {
		if err := unix.Ftruncate(b.fd, int64(size)); err != nil {
			return fmt.Errorf("cut to %d bytes: %w", size, err)
		}
	}
	b.size = int64(size)
	return t.spares.retryWithoutSpares(func() error { return writeFull(b.fd, from.bytes) })
}

func writeFull(fd int, b []byte) error {
	for done := 0; done < len(b); {
		n, err := unix.Pwrite(fd, b[done:], int64(done))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("write %d bytes: %w", len(b), spaceError(err))
		}
		done += max(n, 0)
	}
	return nil
}

// fillMapped encodes into the mapped segment. Its memory is allocated first: missing memory is an
// error here, where an access would be a signal.
func (t *Transport) fillMapped(b *valueFile, size int, fill func(dst []byte) error) error {
	if err := t.spares.retryWithoutSpares(func() error { return allocate(b.fd, size) }); err != nil {
		return err
	}
	faultpoint.Hit("segment-allocated")
	to, err := unix.Mmap(b.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map: %w", spaceError(err))
	}
	defer func() { _ = unix.Munmap(to) }()
	return fill(to[:size:size])
}

func allocate(fd, size int) error {
	if err := headroom.Allocate(fd, int64(size)); err != nil {
		return fmt.Errorf("allocate %d bytes: %w", size, spaceError(err))
	}
	return nil
}

// publish links a segment under its key, with the lock held, in place of an earlier segment. Most
// keys are new, so it creates a lock before it looks for one.
func (t *Transport) publish(e *entry, fd int) error {
	l, err := t.dir.newLock(e.name)
	if err != nil {
		return err
	}
	if err := t.publishUnder(l, e, fd); !errors.Is(err, fs.ErrExist) {
		return err
	}
	l, err = t.dir.lockOf(e.name)
	if isMissing(err) {
		return errHeld // the lock was removed just now
	}
	if err != nil {
		return err
	}
	return t.publishUnder(l, e, fd)
}

// publishUnder links the segment with the lock held, and releases the lock.
func (t *Transport) publishUnder(l *lock, e *entry, fd int) error {
	defer l.unlock()
	e.lock = l.id
	return t.publishRecorded(e, func() error {
		made := !l.linked
		if err := l.link(); err != nil {
			return err
		}
		faultpoint.Hit("segment-put-locked")
		err := t.linkReplacing(fd, e.name)
		if err != nil && made {
			l.remove()
		}
		return err
	})
}

// publishRecorded calls publish to give a value its name, after writing the journal's record. If
// publish fails, the record is cleared.
func (t *Transport) publishRecorded(e *entry, publish func() error) (err error) {
	if e.row, err = t.journal.add(e.record); err != nil {
		return err
	}
	faultpoint.Hit("segment-put-recorded")
	n, err := t.writeNote(e)
	if err == nil {
		err = publish()
		n.close(err == nil)
	}
	if err != nil {
		t.journal.clear(e.row)
		return err
	}
	faultpoint.Hit("segment-put-linked")
	t.track(e)
	return nil
}

// linkReplacing links a segment under a name, in place of an earlier file.
func (t *Transport) linkReplacing(fd int, name string) error {
	const most = 16 // writers without a lock that create the name in between
	for range most {
		err := t.dir.link(fd, name)
		if !errors.Is(err, fs.ErrExist) {
			return spaceError(err)
		}
		now, err := t.dir.lookup(name)
		if err == nil {
			err = t.dir.check(now)
		}
		if err == nil {
			err = t.dir.unlink(name)
		}
		if err != nil && !isMissing(err) {
			return err
		}
		faultpoint.Hit("segment-put-replacing")
	}
	return fmt.Errorf("%w: another process keeps creating a segment of this name without its lock", connector.ErrBusy)
}

// publishAnonymous links a segment under an anonymous name.
func (t *Transport) publishAnonymous(e *entry, fd int) error {
	e.name = anonymous()
	return t.publishRecorded(e, func() error {
		err := t.dir.link(fd, e.name)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%w: it has the name", connector.ErrBusy)
		}
		return spaceError(err)
	})
}

// A check of the free memory costs as much as copying some hundred KiB. So it asks for probeAhead
// bytes more than are needed now; those are taken without another check, for at most probeValidity,
// since other processes take memory too.
const (
	unprobedBytes = 1 << 20 // bytes that are taken without a check
	probeAhead    = 64 << 20
	probeValidity = 100 * time.Millisecond
)

// memory refuses allocations for which the machine has no memory.
type memory struct {
	probe  headroom.Probe
	mu     sync.Mutex
	taken  int64     // since the last check
	budget int64     // bytes that may be taken, by the last check
	until  time.Time // end of the budget's validity
}

func (m *memory) check(size int) error {
	if m.tryTake(int64(size)) {
		return nil
	}
	if m.probe.Check(uint64(size)+probeAhead) == nil { //nolint:gosec // a length
		m.setBudget(probeAhead)
		return nil
	}
	m.setBudget(0)
	if short := m.probe.Check(uint64(size)); short != nil { //nolint:gosec // a length
		return fmt.Errorf("%w: %d bytes needed, %d available by %s of which %d are kept back",
			connector.ErrFull, size, short.AvailableBytes, short.Limit, short.KeepBytes)
	}
	return nil
}

// tryTake takes size bytes, and reports whether they need no check.
func (m *memory) tryTake(size int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken += size
	return m.taken < unprobedBytes || m.taken <= m.budget && time.Now().Before(m.until)
}

func (m *memory) setBudget(ahead int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken, m.budget, m.until = 0, ahead, time.Now().Add(probeValidity)
}
