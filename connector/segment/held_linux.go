package segment

import (
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// entry is a value that was put here. Nobody says when it has been got: that is
// looked at with later puts.
type entry struct {
	record
	edge connector.Edge
	key  string
	size int64
	slot int // of the journal
	at   time.Time
	gone bool // from the table; guarded by the transport's mu
}

// hold takes an entry into the table, in place of one of the same name.
func (t *Transport) hold(e *entry) {
	e.at = time.Now()
	t.mu.Lock()
	old := t.held[e.name]
	if old != nil {
		old.gone = true
	}
	t.held[e.name] = e
	t.oldest = append(t.oldest, e)
	if t.opts.TTL > 0 && t.sweeper == nil {
		t.sweeper = time.AfterFunc(t.opts.TTL, t.sweep)
	}
	t.mu.Unlock()
	if old != nil {
		t.journal.clear(old.slot)
	}
	t.reap()
}

// forget takes an entry out of the table, when nothing of it is left.
func (t *Transport) forget(e *entry) {
	t.mu.Lock()
	was := !e.gone
	if was {
		e.gone = true
		delete(t.held, e.name)
	}
	t.mu.Unlock()
	if was {
		t.journal.clear(e.slot)
	}
}

// got forgets what was put here and has been got here.
func (t *Transport) got(name string, segment identity) {
	t.mu.Lock()
	e := t.held[name]
	t.mu.Unlock()
	if e != nil && e.segment == segment {
		t.forget(e)
	}
}

// all returns the entries for which is holds, under mu.
func (t *Transport) all(is func(*entry) bool) []*entry {
	var out []*entry
	for _, e := range t.held {
		if is(e) {
			out = append(out, e)
		}
	}
	return out
}

// reapLooks is more than one for each put, so that the table does not grow with what
// is gone.
const reapLooks = 2

// reap looks whether the oldest entries are still there.
func (t *Transport) reap() {
	for range reapLooks {
		t.mu.Lock()
		for len(t.oldest) > 0 && t.oldest[0].gone {
			t.oldest = t.oldest[1:]
		}
		if len(t.oldest) == 0 {
			t.mu.Unlock()
			return
		}
		e := t.oldest[0]
		t.oldest = append(t.oldest[1:], e)
		t.mu.Unlock()
		if !t.there(e) && !t.lockLeft(e) {
			t.forget(e)
		}
	}
}

// there says whether the segment of an entry is.
func (t *Transport) there(e *entry) bool {
	now, err := t.dir.lookup(e.name)
	return err == nil && now.identity == e.segment
}

// lockLeft says whether the lock is where the segment is gone: its consumer is about
// to remove it, or has died before it could.
func (t *Transport) lockLeft(e *entry) bool {
	now, err := t.dir.lookup(lockName(e.name))
	if err != nil || now.identity != e.lock {
		return false
	}
	_, err = t.dir.lookup(e.name)
	return missing(err)
}
