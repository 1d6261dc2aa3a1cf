package segment

import (
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// entry is a value that was put here. Nobody says when it has been got: that is
// looked at with later puts. What has no guard below does not change in the table.
type entry struct {
	record
	edge       connector.Edge
	key        string
	size       int64
	row        int // of the journal
	putAt      time.Time
	fileFreed  atomic.Bool // whether its file is free, and may have another value
	untracked  bool        // from the table; guarded by the transport's mu
	orphanSeen time.Time   // when its lock was first seen without it; guarded by reaping
}

// track takes an entry into the table, in place of one of the same name. What is
// lasting is let go of at once.
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

// untrack takes an entry out of the table, when nothing of it is left.
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

// untrackConsumed forgets what was put here and has been got here.
func (t *Transport) untrackConsumed(name string, segment identity) {
	t.mu.Lock()
	e := t.entries[name]
	t.mu.Unlock()
	if e != nil && e.segment == segment {
		t.untrack(e)
	}
}

// entriesWhere returns the entries for which is holds, under mu.
func (t *Transport) entriesWhere(is func(*entry) bool) []*entry {
	var out []*entry
	for _, e := range t.entries {
		if is(e) {
			out = append(out, e)
		}
	}
	return out
}

// leftGrace is how long a consumer has for removing the lock after the segment. Until
// then, one that is alive would be surprised to find it gone.
const orphanGrace = time.Second

// reapLooks is more than one for each put, so that the table does not grow with what
// is gone.
const reapChecks = 2

// reap looks whether the oldest entries are still there; the newest is.
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

// nextOldest returns the entry that was looked at longest ago.
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

// exists says whether the segment of a record is.
func (d directory) exists(r record) bool {
	now, err := d.lookup(r.name)
	return err == nil && now.identity == r.segment
}

// lockOrphaned says whether the lock is where the segment is gone: its consumer is about
// to remove it, has died before it could, or never does.
func (t *Transport) lockOrphaned(e *entry) bool {
	now, err := t.dir.lookup(lockName(e.name))
	if err != nil || now.identity != e.lock {
		return false
	}
	_, err = t.dir.lookup(e.name)
	return isMissing(err)
}
