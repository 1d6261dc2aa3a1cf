package segment

import (
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// entry is a value that this transport put. No process reports that the value was got: later puts
// check that. Fields without a named guard do not change while the entry is in the table.
type entry struct {
	record
	edge       connector.Edge
	key        string
	size       int64
	row        int // row of the journal
	putAt      time.Time
	fileFreed  atomic.Bool // the file is free, and may contain another value
	untracked  bool        // removed from the table; guarded by Transport.mu
	orphanSeen time.Time   // when reap first saw its lock without the segment; guarded by reapMu
}

// track adds an entry to the table, in place of one with the same name. A lasting value is not
// tracked.
func (t *Transport) track(e *entry) {
	if t.opts.Lasting {
		t.journal.clear(e.row)
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.opts.TTL > 0 && t.sweeper == nil {
			t.sweeper = time.AfterFunc(t.opts.TTL, t.sweepLasting)
		}
		return
	}
	e.putAt = time.Now()
	t.mu.Lock()
	old := t.entries[e.name]
	if old != nil {
		old.untracked = true
	}
	t.entries[e.name] = e
	t.oldest = append(t.oldest, e)
	if t.opts.TTL > 0 && t.sweeper == nil {
		t.sweeper = time.AfterFunc(t.opts.TTL, t.sweep)
	}
	t.mu.Unlock()
	if old != nil {
		t.journal.release(old.row)
	}
	t.reap(e)
}

// untrack removes an entry from the table, once its files are gone.
func (t *Transport) untrack(e *entry) {
	t.mu.Lock()
	was := !e.untracked
	if was {
		e.untracked = true
		delete(t.entries, e.name)
	}
	t.mu.Unlock()
	if was {
		t.journal.release(e.row)
	}
}

// untrackConsumed removes the entry of a value that this transport has put and got.
func (t *Transport) untrackConsumed(name string, segment identity) {
	t.mu.Lock()
	e := t.entries[name]
	t.mu.Unlock()
	if e != nil && e.segment == segment {
		t.untrack(e)
	}
}

// entriesWhere returns the entries for which is returns true. Transport.mu is held.
func (t *Transport) entriesWhere(is func(*entry) bool) []*entry {
	var out []*entry
	for _, e := range t.entries {
		if is(e) {
			out = append(out, e)
		}
	}
	return out
}

// orphanGrace is the time that a consumer has to remove the lock after the segment. It fails if the
// lock is removed earlier.
const orphanGrace = time.Second

// reapChecks is more than one for each put, so that the table does not grow with values that were
// got.
const reapChecks = 2

// reap checks whether the oldest entries still exist; it stops at the newest, which does.
func (t *Transport) reap(newest *entry) {
	t.reapMu.Lock()
	defer t.reapMu.Unlock()
	for range reapChecks {
		e := t.nextOldest()
		if e == nil || e == newest {
			return
		}
		switch now := time.Now(); {
		case !e.fileFreed.Load() && t.dir.exists(e.record):
			continue
		case !t.lockOrphaned(e):
		case e.orphanSeen.IsZero():
			e.orphanSeen = now
			continue
		case now.Sub(e.orphanSeen) < orphanGrace || t.removeEntry(e) != nil:
			continue
		}
		t.untrack(e)
	}
}

// nextOldest returns the entry whose last check is the longest ago.
func (t *Transport) nextOldest() *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.oldest) > 0 && t.oldest[0].untracked {
		t.oldest = t.oldest[1:]
	}
	if len(t.oldest) == 0 {
		return nil
	}
	e := t.oldest[0]
	t.oldest = append(t.oldest[1:], e)
	return e
}

// exists reports whether the segment of a record exists.
func (d directory) exists(r record) bool {
	now, err := d.lookup(r.name)
	return err == nil && now.identity == r.segment
}

// lockOrphaned reports whether the lock exists without the segment: its consumer is about to remove
// it, died before that, or never removes it.
func (t *Transport) lockOrphaned(e *entry) bool {
	now, err := t.dir.lookup(lockName(e.name))
	if err != nil || now.identity != e.lock {
		return false
	}
	_, err = t.dir.lookup(e.name)
	return isMissing(err)
}
