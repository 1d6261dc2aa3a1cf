package actors

import (
	"runtime"
	"sync/atomic"
)

// A Spinner has a goroutine that has nothing to do look for work from other processes
// before it parks. Work that is found so costs no wake-up, in either process.
//
// A goroutine looks only while no other is about to run that it could hold up: those
// that take part say when they wake one. It looks once Watch has said that there is
// something to look at. The methods of a nil Spinner do nothing.
type Spinner struct {
	poll       PollFunc
	on         atomic.Bool
	woken      atomic.Int32 // goroutines that were woken and do not run yet
	enough     func() bool
	neverParks bool
	polling    atomic.Bool // a goroutine polls

	polled atomic.Int64
}

// A PollFunc looks for as long as it thinks right, or until enough reports true, handles
// what it finds, and reports whether it has handled anything. Before it does, it calls
// begin; when that reports false, the goroutine has no time, and another has to handle
// what was found. Several goroutines may call it.
type PollFunc func(enough, begin func() bool) (handled bool)

// NewSpinner makes a lookout that looks so. With polls, one goroutine at a time looks again
// and again in place of parking: see Poll.
func NewSpinner(look PollFunc, polls bool) *Spinner {
	l := &Spinner{poll: look, neverParks: polls}
	l.enough = func() bool { return l.woken.Load() > 0 }
	return l
}

// Enable says whether there is something to look at.
func (l *Spinner) Enable(on bool) {
	if l != nil {
		l.on.Store(on)
	}
}

func (l *Spinner) enabled() bool { return l != nil && l.on.Load() }

// Wake is called before a goroutine is woken, and Awake by that goroutine.
func (l *Spinner) Wake() {
	if l != nil {
		l.woken.Add(1)
	}
}

// Awake undoes a Wake.
func (l *Spinner) Awake() {
	if l != nil {
		l.woken.Add(-1)
	}
}

// Poll is called by a goroutine that is about to park, and may find that it was woken. It
// handles nothing unless begin reports true: what it handles may wait for a lock, and
// nothing may depend on the goroutine meanwhile. It reports whether it has handled
// anything.
func (l *Spinner) Poll(begin func() bool) (handled bool) {
	if !l.enabled() || l.enough() {
		return false
	}
	l.polled.Add(1)
	return l.poll(l.enough, begin)
}

// NeverParks reports whether Poll takes the place of Look.
func (l *Spinner) NeverParks() bool { return l != nil && l.neverParks }

// PollUntil is Look again and again, until something was handled or called reports true: that
// the goroutine need not park any more. It returns at once while another goroutine polls.
func (l *Spinner) PollUntil(begin, called func() bool) (handled bool) {
	if !l.polling.CompareAndSwap(false, true) {
		return false
	}
	defer l.polling.Store(false)
	enough := func() bool { return l.enough() || called() }
	for l.enabled() && !called() {
		if !l.enough() {
			l.polled.Add(1)
			if l.poll(enough, begin) {
				return true
			}
		}
		runtime.Gosched() // for one that was woken
	}
	return false
}

// Polls counts the looks since the lookout was made.
func (l *Spinner) Polls() int64 {
	if l == nil {
		return 0
	}
	return l.polled.Load()
}

// Free is the begin of a goroutine on which nothing depends.
func Free() bool { return true }
