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
	waking     atomic.Int32 // goroutines that were woken and do not run yet
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
func NewSpinner(poll PollFunc, neverParks bool) *Spinner {
	s := &Spinner{poll: poll, neverParks: neverParks}
	s.enough = func() bool { return s.waking.Load() > 0 }
	return s
}

// Enable says whether there is something to look at.
func (s *Spinner) Enable(on bool) {
	if s != nil {
		s.on.Store(on)
	}
}

func (s *Spinner) enabled() bool { return s != nil && s.on.Load() }

// Wake is called before a goroutine is woken, and Awake by that goroutine.
func (s *Spinner) Wake() {
	if s != nil {
		s.waking.Add(1)
	}
}

// Awake undoes a Wake.
func (s *Spinner) Awake() {
	if s != nil {
		s.waking.Add(-1)
	}
}

// Poll is called by a goroutine that is about to park, and may find that it was woken. It
// handles nothing unless begin reports true: what it handles may wait for a lock, and
// nothing may depend on the goroutine meanwhile. It reports whether it has handled
// anything.
func (s *Spinner) Poll(begin func() bool) (handled bool) {
	if !s.enabled() || s.enough() {
		return false
	}
	s.polled.Add(1)
	return s.poll(s.enough, begin)
}

// NeverParks reports whether Poll takes the place of Look.
func (s *Spinner) NeverParks() bool { return s != nil && s.neverParks }

// PollUntil is Look again and again, until something was handled or called reports true: that
// the goroutine need not park any more. It returns at once while another goroutine polls.
func (s *Spinner) PollUntil(begin, called func() bool) (handled bool) {
	if !s.polling.CompareAndSwap(false, true) {
		return false
	}
	defer s.polling.Store(false)
	enough := func() bool { return s.enough() || called() }
	for s.enabled() && !called() {
		if !s.enough() {
			s.polled.Add(1)
			if s.poll(enough, begin) {
				return true
			}
		}
		runtime.Gosched() // for one that was woken
	}
	return false
}

// Polls counts the looks since the lookout was made.
func (s *Spinner) Polls() int64 {
	if s == nil {
		return 0
	}
	return s.polled.Load()
}

// AlwaysBegin is the begin of a goroutine on which nothing depends.
func AlwaysBegin() bool { return true }
