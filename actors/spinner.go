package actors

import (
	"runtime"
	"sync/atomic"
)

// A Spinner makes an idle goroutine poll for work from other processes before it parks.
// Work that is found this way costs no wake-up, in either process.
//
// A goroutine polls only while no woken goroutine waits for a processor: callers report
// with Wake and Awake each goroutine that they wake. It polls only while Enable has
// enabled it. The methods of a nil Spinner do nothing.
type Spinner struct {
	poll       PollFunc
	on         atomic.Bool
	waking     atomic.Int32 // goroutines that were woken and do not run yet
	enough     func() bool
	neverParks bool
	polling    atomic.Bool // a goroutine polls

	polled atomic.Int64
}

// A PollFunc polls for a time of its choice, or until enough reports true, handles the work
// that it finds, and reports whether it has handled any. Before it handles work it calls
// begin; if begin reports false, another goroutine has to handle that work. Several
// goroutines may call a PollFunc.
type PollFunc func(enough, begin func() bool) (handled bool)

// NewSpinner returns a spinner that polls with poll. With neverParks, one goroutine at a time
// polls again and again in place of parking: see PollUntil.
func NewSpinner(poll PollFunc, neverParks bool) *Spinner {
	s := &Spinner{poll: poll, neverParks: neverParks}
	s.enough = func() bool { return s.waking.Load() > 0 }
	return s
}

// Enable sets whether there is a source of work to poll.
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

// Awake is called by the goroutine that was woken, and undoes its Wake.
func (s *Spinner) Awake() {
	if s != nil {
		s.waking.Add(-1)
	}
}

// Poll is called by a goroutine that is about to park. It handles no work unless begin
// reports true: a handler may wait for a lock, and no other goroutine may depend on this
// one meanwhile. It reports whether it has handled any work.
func (s *Spinner) Poll(begin func() bool) (handled bool) {
	if !s.enabled() || s.enough() {
		return false
	}
	s.polled.Add(1)
	return s.poll(s.enough, begin)
}

// NeverParks reports whether callers use PollUntil in place of Poll.
func (s *Spinner) NeverParks() bool { return s != nil && s.neverParks }

// PollUntil calls the PollFunc again and again, until work was handled, the spinner is
// disabled, or called reports that the goroutine need not park any more. It reports whether
// it has handled any work. It returns at once while another goroutine polls.
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
		runtime.Gosched() // for a goroutine that was woken
	}
	return false
}

// Polls counts the calls of the PollFunc so far.
func (s *Spinner) Polls() int64 {
	if s == nil {
		return 0
	}
	return s.polled.Load()
}

// AlwaysBegin is the begin of a goroutine on which no other depends.
func AlwaysBegin() bool { return true }
