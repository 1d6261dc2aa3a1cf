package actors

import "sync/atomic"

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
}

// A LookFunc looks for as long as it thinks right, or until enough reports true, handles
// what it finds, and reports whether it has handled anything. Before it does, it calls
// begin; when that reports false, the goroutine has no time, and another has to handle
// what was found. Several goroutines may call it.
type LookFunc func(enough, begin func() bool) (handled bool)

// NewLookout makes a lookout that looks so.
func NewLookout(look LookFunc) *Lookout {
	l := &Lookout{look: look}
	l.enough = func() bool { return l.woken.Load() > 0 }
	return l
}

// Watch says whether there is something to look at.
func (l *Lookout) Watch(on bool) { l.watches.Store(on) }

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
	return l.isOn() && !l.enough() && l.look(l.enough, begin)
}

// Free is the begin of a goroutine on which nothing depends.
func Free() bool { return true }
