package segment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

const (
	// minPause and maxPause bound the pause between two tries to acquire a lock.
	minPause = 50 * time.Microsecond
	maxPause = 5 * time.Millisecond
)

// Transport is a transport over the segments of one directory.
type Transport struct {
	opts    Options
	dir     directory
	journal *journal
	spares  *spares
	memory  memory
	done    chan struct{}

	// lifeMu is held for reading while an operation uses the descriptors.
	lifeMu sync.RWMutex
	closed bool // guarded by lifeMu

	mu      sync.Mutex
	entries map[string]*entry // values that were put here, by the name of the segment
	oldest  []*entry          // the same entries and some that were removed, in the order of reap's checks
	sweeper *time.Timer       // runs while there are entries and a TTL
	watch   *watch            // nil until the first Await

	reapMu sync.Mutex // held by reap

	sweepPending bool // a living process had locked files of a dead one; not changed after New
}

var (
	_ connector.Transport = (*Transport)(nil)
	_ connector.Peeker    = (*Transport)(nil)
	_ connector.KeySharer = (*Transport)(nil)
)

// New opens the directory, and removes the files of dead processes.
func New(opts Options) (connector.Transport, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	dir, err := openDirectory(opts.Dir)
	if err != nil {
		return nil, err
	}
	j, err := dir.openJournal()
	if err != nil {
		dir.close()
		return nil, fmt.Errorf("%w: the journal of segments in %s: %w", connector.ErrUnavailable, opts.Dir, err)
	}
	t := &Transport{
		opts: opts, dir: dir, journal: j, spares: newSpares(dir, j, opts.Lasting), memory: memory{probe: headroom.System()},
		done: make(chan struct{}), entries: make(map[string]*entry),
	}
	err = t.sweepDead()
	_, lasting := j.sweepNotes(dir, opts.Log)
	if err := errors.Join(err, lasting); err != nil {
		opts.Log.Warn("segments of dead processes stay", "in", opts.Dir, "err", err)
	}
	return t, nil
}

// sweepPatience bounds the retries for files that a living process has locked. Locks are held for
// as long as a copy takes, unless their process is stopped.
const sweepPatience = 100 * time.Millisecond

// sweepDead removes the files of dead processes. Files that stay locked are left to Close, and to
// the next transport that is opened.
func (t *Transport) sweepDead() error {
	until := time.Now().Add(sweepPatience)
	for nap := minPause; ; nap = min(2*nap, maxPause) {
		err := t.journal.sweep(t.dir, t.opts.Log)
		t.sweepPending = errors.Is(err, connector.ErrBusy)
		if !t.sweepPending || time.Now().After(until) {
			return err
		}
		<-time.After(nap)
	}
}

// SharesKeys implements [connector.KeySharer]: names of segments contain no edge.
func (t *Transport) SharesKeys() bool { return t.opts.Generation == ByKey }

// beginOperation begins an operation, and endOperation ends it. Close waits for running operations.
func (t *Transport) beginOperation() error {
	t.lifeMu.RLock()
	if t.closed {
		t.lifeMu.RUnlock()
		return connector.ErrClosed
	}
	return nil
}

func (t *Transport) endOperation() { t.lifeMu.RUnlock() }

// Close implements [connector.Transport]. If a living process holds a lock for longer than the
// timeout, Close fails with [connector.ErrBusy], and the next transport that is opened removes the
// rest.
func (t *Transport) Close() error {
	if !t.beginClose() {
		return nil
	}
	t.mu.Lock()
	entries := t.entriesWhere(func(*entry) bool { return true })
	if t.sweeper != nil {
		t.sweeper.Stop()
	}
	w := t.watch
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), t.opts.Timeout)
	defer cancel()
	err := t.reclaim(ctx, nil, entries)
	t.spares.close()
	if t.sweepPending {
		_ = t.journal.sweep(t.dir, t.opts.Log)
	}
	_, _ = t.journal.sweepNotes(t.dir, t.opts.Log) // values that were got here; the next transport sweeps the rest
	t.journal.close(err == nil)
	t.dir.removeJournals()
	t.dir.close()
	if w != nil {
		w.files.Close()
	}
	return err
}

// beginClose refuses further operations and waits for the running ones. It reports whether this
// call is the first.
func (t *Transport) beginClose() bool {
	t.lifeMu.RLock()
	closed := t.closed
	t.lifeMu.RUnlock()
	if closed {
		return false
	}
	t.mu.Lock()
	select {
	case <-t.done:
	default:
		close(t.done)
	}
	t.mu.Unlock()
	t.lifeMu.Lock()
	defer t.lifeMu.Unlock()
	first := !t.closed
	t.closed = true
	return first
}

// Cleanup implements [connector.Transport].
func (t *Transport) Cleanup(ctx context.Context, key string) error {
	if err := t.beginOperation(); err != nil {
		return err
	}
	defer t.endOperation()
	if t.opts.Lasting {
		return t.retryBusy(ctx, t.done, func() error { return t.removeLasting(key) })
	}
	t.mu.Lock()
	entries := t.entriesWhere(func(e *entry) bool { return e.key == key })
	t.mu.Unlock()
	return t.reclaim(ctx, t.done, entries)
}

// reclaim removes values that were put here and not got.
func (t *Transport) reclaim(ctx context.Context, done <-chan struct{}, entries []*entry) error {
	var errs []error
	for _, e := range entries {
		err := t.retryBusy(ctx, done, func() error { return t.removeEntry(e) })
		if err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", e.key, err))
			continue
		}
		t.untrack(e)
	}
	return errors.Join(errs...)
}

// retryBusy calls try again while a living process holds the lock, the context lasts, and the
// timeout has not passed. Locks are held for as long as a copy takes, so polling costs less than a
// notification. If try fails for want of space or descriptors, the spares are dropped.
func (t *Transport) retryBusy(ctx context.Context, done <-chan struct{}, try func() error) error {
	var deadline time.Time
	for nap := minPause; ; nap = min(2*nap, maxPause) {
		err := t.spares.retryWithoutSpares(try)
		if !errors.Is(err, connector.ErrBusy) {
			return err
		}
		switch now := time.Now(); {
		case deadline.IsZero():
			deadline = now.Add(t.opts.Timeout)
		case now.After(deadline):
			return fmt.Errorf("%w, for %v", err, t.opts.Timeout)
		}
		select {
		case <-time.After(nap):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, ctx.Err())
		case <-done:
			return connector.ErrClosed
		}
	}
}

// remove removes the segment of a key, if it belongs to this user.
func (d directory) remove(key string) error {
	if err := checkName(key); err != nil {
		return err
	}
	r := record{purpose: putting, name: key}
	if f, err := d.lookup(key); err == nil {
		if err := d.check(f); err != nil {
			return err
		}
		r.segment = f.identity
	} else if !isMissing(err) {
		return err
	}
	if f, err := d.lookup(lockName(key)); err == nil {
		r.lock = f.identity
	}
	return d.removeRecorded(r)
}

// removeEntry removes the value of an entry, if it still exists. Its file may contain another value
// meanwhile, even under the same key.
func (t *Transport) removeEntry(e *entry) error {
	return t.dir.removeRecordedIf(e.record, func() bool { return !e.fileFreed.Load() })
}

// removeRecorded removes the files of a dead process's record that still exist.
func (d directory) removeRecorded(r record) error {
	return d.removeRecordedIf(r, func() bool { return true })
}

// removeRecordedIf removes the files of a record, if is returns true with the lock held.
func (d directory) removeRecordedIf(r record, is func() bool) error {
	l, err := d.lockOf(r.name)
	if err != nil && !isMissing(err) && !errors.Is(err, connector.ErrKey) { // a file that is no lock of this user stays
		return err
	}
	if l != nil {
		defer l.unlock()
	}
	now, err := d.lookup(r.name)
	gone := isMissing(err)
	if err != nil && !gone {
		return err
	}
	if !gone && r.purpose == putting && now.identity == r.segment && is() {
		if err := d.unlink(r.name); err != nil && !isMissing(err) {
			return err
		}
		gone = true
		faultpoint.Hit("segment-settle-unlinked")
	}
	if gone && l != nil && l.id == r.lock {
		l.remove()
		faultpoint.Hit("segment-settle-unlocked")
	}
	return nil
}

// sweep removes expired values, and sets the timer for the next one.
func (t *Transport) sweep() {
	if t.beginOperation() != nil {
		return
	}
	defer t.endOperation()
	now := time.Now()
	next := time.Duration(0)
	t.mu.Lock()
	late := t.entriesWhere(func(e *entry) bool { return now.Sub(e.putAt) >= t.opts.TTL })
	t.mu.Unlock()
	for _, e := range late {
		there := t.dir.exists(e.record)
		if t.removeEntry(e) != nil {
			next = maxPause // another process has locked it
			continue
		}
		t.untrack(e)
		if there {
			t.opts.Log.Warn("no reader came for a value", slog.String("edge", e.edge.String()), slog.String("key", e.key),
				slog.Int64("bytes", e.size), slog.Duration("after", t.opts.TTL))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.entries {
		if left := t.opts.TTL - now.Sub(e.putAt); left > 0 && (next == 0 || left < next) {
			next = left
		}
	}
	if next > 0 {
		t.sweeper.Reset(next)
	} else {
		t.sweeper = nil
	}
}
