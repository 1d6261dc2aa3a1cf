package actors

import (
	"runtime"
	"sync/atomic"
)

// A Lookout has a goroutine that has nothing to do look for work from other processes
// before it parks. Work that is found so costs no wake-up, in either process.
//
// A goroutine looks only while no other is about to run that it could hold up: those
// that take part say when they wake one. It looks once Watch has said that there is
// something to look at. The methods of a nil Lookout do nothing.
type Lookout struct {
	look    LookFunc
	watches atomic.Bool
	woken   atomic.Int32 // goroutines that were woken and do not run yet
	enough  func() bool
	polls   bool
	polling atomic.Bool // a goroutine polls

	looked atomic.Int64
}

// A LookFunc looks for as long as it thinks right, or until enough reports true, handles
// what it finds, and reports whether it has handled anything. Before it does, it calls
// begin; when that reports false, the goroutine has no time, and another has to handle
// what was found. Several goroutines may call it.
type LookFunc func(enough, begin func() bool) (handled bool)

// NewLookout makes a lookout that looks so. With polls, one goroutine at a time looks again
// and again in place of parking: see Poll.
func NewLookout(look LookFunc, polls bool) *Lookout {
	l := &Lookout{look: look, polls: polls}
	l.enough = func() bool { return l.woken.Load() > 0 }
	return l
}

// Watch says whether there is something to look at.
func (l *Lookout) Watch(on bool) {
	if l != nil {
		l.watches.Store(on)
	}
}

func (l *Lookout) isOn() bool { return l != nil && l.watches.Load() }

// Wake is called before a goroutine is woken, and Awake by that goroutine.
func (l *Lookout) Wake() {
	if l != nil {
		l.woken.Add(1)
	}
}

// Awake undoes a Wake.
func (l *Lookout) Awake() {
	if l != nil {
		l.woken.Add(-1)
	}
}

// Look is called by a goroutine that is about to park, and may find that it was woken. It
// handles nothing unless begin reports true: what it handles may wait for a lock, and
// nothing may depend on the goroutine meanwhile. It reports whether it has handled
// anything.
func (l *Lookout) Look(begin func() bool) (handled bool) {
	if !l.isOn() || l.enough() {
		return false
	}
	l.looked.Add(1)
	return l.look(l.enough, begin)
}

// Polls reports whether Poll takes the place of Look.
func (l *Lookout) Polls() bool { return l != nil && l.polls }

// Poll is Look again and again, until something was handled or called reports true: that
// the goroutine need not park any more. It returns at once while another goroutine polls.
func (l *Lookout) Poll(begin, called func() bool) (handled bool) {
	if !l.polling.CompareAndSwap(false, true) {
		return false
	}
	defer l.polling.Store(false)
	enough := func() bool { return l.enough() || called() }
	for l.isOn() && !called() {
		if !l.enough() {
			l.looked.Add(1)
			if l.look(enough, begin) {
				return true
			}
		}
		runtime.Gosched() // for one that was woken
	}
	return false
}

// Looks counts the looks since the lookout was made.
func (l *Lookout) Looks() int64 {
	if l == nil {
		return 0
	}
	return l.looked.Load()
}

// Free is the begin of a goroutine on which nothing depends.
func Free() bool { return true }
