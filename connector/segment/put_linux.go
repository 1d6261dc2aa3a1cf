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

// maxCopied is the size of the largest segment that is written from private memory,
// which takes as much of that.
const maxCopied = 64 << 20

// write makes a segment that nobody can see yet. What is spare makes room for it.
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

// fillCopied writes a segment from private memory, which is cheaper than to map and
// unmap it: the system need not clear the pages first, nor tell other processors that
// they are gone from here.
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

// fillMapped has a segment written where it lies. Its memory is there before the
// first byte is written: what has none is refused here, and not by a signal.
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

// publish gives a segment its key for a name, under the lock, in place of what had
// that name. Most keys are new: so it makes a lock before it looks for one.
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
		return errHeld // until now
	}
	if err != nil {
		return err
	}
	return t.publishUnder(l, e, fd)
}

// publishUnder unlocks the lock, too.
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

// publishRecorded gives a value its name, which is written down before. Where that fails
// nothing of it stays.
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

// linkReplacing links a segment, and replaces what has its name.
func (t *Transport) linkReplacing(fd int, name string) error {
	const most = 16 // writers without a lock that come between
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
	return fmt.Errorf("%w: somebody keeps making a segment of this name without its lock", connector.ErrBusy)
}

// publishAnonymous gives a segment a name without a meaning.
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

// A look at the free memory costs as much as copying some hundred KiB. So it asks for
// lookAhead more than is needed now, and that much is taken without another look, but
// for lookAgain at the most, since others take memory too.
const (
	unprobedBytes = 1 << 20 // bytes that are taken without any look
	probeAhead    = 64 << 20
	probeValidity = 100 * time.Millisecond
)

// memory refuses what the machine has no room for.
type memory struct {
	probe  headroom.Probe
	mu     sync.Mutex
	taken  int64     // since the last look
	budget int64     // what may be, as that look said
	until  time.Time // for as long as this
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

// tryTake reports whether so many bytes can be taken without a look.
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
