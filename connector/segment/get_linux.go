package segment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// Get implements [connector.Transport]. It waits for a lock until the context ends or the timeout
// has passed.
func (t *Transport) Get(ctx context.Context, _ connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return t.get(ctx, key, meta, true)
}

// Peek implements [connector.Peeker].
func (t *Transport) Peek(ctx context.Context, _ connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return t.get(ctx, key, meta, false)
}

func (t *Transport) get(ctx context.Context, key string, meta connector.Metadata, consume bool) (payload connector.Payload, err error) {
	if err := t.beginOperation(); err != nil {
		return nil, err
	}
	defer t.endOperation()
	at, err := locate(key, meta)
	if err != nil {
		return nil, err
	}
	err = t.retryBusy(ctx, t.done, func() error {
		payload, err = t.readLocked(at, consume)
		return err
	})
	return payload, err
}

// Await implements [connector.Transport].
func (t *Transport) Await(ctx context.Context, _ connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	if err := t.beginOperation(); err != nil {
		return nil, err
	}
	defer t.endOperation()
	at, err := locate(key, meta)
	if err != nil {
		return nil, err
	}
	w, err := t.startWatch()
	if err != nil {
		return nil, err
	}
	changed := w.subscribe(at.name)
	defer w.unsubscribe(at.name, changed)
	nap := minPause
	for {
		var payload connector.Payload
		err := t.spares.retryWithoutSpares(func() (err error) {
			payload, err = t.readLocked(at, true)
			return err
		})
		var again <-chan time.Time
		switch {
		case errors.Is(err, connector.ErrBusy):
			// inotify does not report every release of a lock: a lock can be released without
			// closing its file.
			again = time.After(nap)
			nap = min(2*nap, maxPause)
		case errors.Is(err, connector.ErrNotFound):
			nap = minPause
		default:
			return payload, err
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			if again != nil {
				return nil, fmt.Errorf("%w: %w", err, ctx.Err())
			}
			return nil, ctx.Err()
		case <-t.done:
			return nil, connector.ErrClosed
		}
	}
}

// readLocked reads a segment under its lock, and then removes both.
//
// Without metadata, a segment without a lock is not found: its writer may still be writing. With
// metadata the writer has finished; the lock may be missing, and the process that unlinks the
// segment has got the value.
func (t *Transport) readLocked(at address, consume bool) (connector.Payload, error) {
	l, err := t.dir.lockOf(at.name)
	if isMissing(err) && at.fromMetadata() {
		err = nil
	}
	if isMissing(err) {
		return nil, connector.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	if l != nil {
		defer l.unlock()
	}
	fd, err := t.dir.openAny(at.name, unix.O_RDONLY)
	if isMissing(err) {
		return nil, connector.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// An open file is not reused for another value, so the file that has the name now is the one
	// that is read.
	f, err := t.dir.lookup(at.name)
	if isMissing(err) {
		return nil, connector.ErrNotFound
	}
	if err == nil {
		err = t.dir.check(f)
	}
	if err != nil {
		return nil, err
	}
	payload, err := t.read(fd, f, at)
	if err == nil && !t.dir.isSame(fd, at.name, f) {
		payload.Release()
		err = connector.ErrNotFound // another reader has got it
	}
	if err != nil || !consume {
		return payload, err
	}
	faultpoint.Hit("segment-get-read")
	if err := t.consume(at.name, f, l); err != nil {
		payload.Release()
		return nil, err
	}
	faultpoint.Hit("segment-get")
	return payload, nil
}

// read copies a segment. It does not map it: the file's owner can truncate it at any time, which is
// an error here, where an access to mapped memory would end this process.
func (t *Transport) read(fd int, f file, at address) (connector.Payload, error) {
	size := at.size
	if !at.fromMetadata() {
		if f.size == 0 {
			return nil, connector.ErrNotFound // its writer has died, or takes no lock
		}
		size = f.size
	}
	if f.size != size && f.size != roundUp(size) {
		return nil, fmt.Errorf("%w: a segment of %d bytes for %d", connector.ErrCorrupt, f.size, size)
	}
	if f.bytes < size {
		// A writer that was killed leaves pages that it never wrote.
		return nil, fmt.Errorf("%w: of %d bytes only %d were written", connector.ErrCorrupt, size, f.bytes)
	}
	if err := t.memory.check(int(size)); err != nil {
		return nil, err
	}
	faultpoint.Hit("segment-get-opened")
	b := getBuffer(int(size))
	if err := readFull(fd, b.bytes); err != nil {
		b.Release()
		return nil, err
	}
	return b, nil
}

// roundUp returns the size in whole pages, which some systems give to segments.
func roundUp(size int64) int64 {
	page := int64(os.Getpagesize())
	return (size + page - 1) / page * page
}

func readFull(fd int, b []byte) error {
	for done := 0; done < len(b); {
		n, err := unix.Pread(fd, b[done:], int64(done))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("read: %w", err)
		case n == 0:
			return fmt.Errorf("%w: it was cut short while it was read: %w", connector.ErrCorrupt, io.ErrUnexpectedEOF)
		}
		done += max(n, 0)
	}
	return nil
}

// consume removes a segment and its lock. The journal has the lock before the segment is unlinked,
// so that a process that dies in between leaves no lock. Without space for the journal's row it
// continues: the removal frees space, and if a transport put the value, its journal has the lock,
// too.
func (t *Transport) consume(name string, f file, l *lock) error {
	if l != nil {
		row, err := t.journal.add(record{purpose: getting, name: name, segment: f.identity, lock: l.id})
		switch {
		case err == nil:
			defer t.journal.release(row)
			faultpoint.Hit("segment-get-recorded")
		case !errors.Is(err, connector.ErrFull):
			return err
		}
	}
	err := t.dir.unlink(name)
	if isMissing(err) {
		return connector.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	faultpoint.Hit("segment-get-unlinked")
	if l != nil {
		l.remove()
		faultpoint.Hit("segment-get-unlocked")
	}
	t.untrackConsumed(name, f.identity)
	return nil
}
