package lane

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// maxPoll is the most that a receiver on the ladder looks before it sleeps, and
	// firstLook what it looks in a new lane. Two sleeps with their wake-ups cost about as
	// much, on two processors: a receiver that looks for longer loses more than it can win.
	maxPoll     = 100 * time.Microsecond
	initialPoll = 50 * time.Microsecond
	// minPoll is what a look grows from, and below which it is none.
	minPoll = time.Microsecond
	// shortSleep is a sleep that should rather have been spent looking. It is longer than
	// the longest look: where both processes sleep, each does for two wake-ups and the work
	// of the other, and would never begin to look.
	shortSleep = 2 * maxPoll
	// pollingBudget is for how long a receiver looks that polls.
	pollingBudget = 5 * time.Millisecond
	// loadsPerClock is how often the header is read between two looks at the
	// clock: about a microsecond.
	loadsPerClock = 32
)

// ladder bounds how long a receiver looks. With a budget of 0 it does not look.
type ladder struct {
	budget time.Duration
	learns bool   // the budget follows what looking brought
	cores  *cores // nil: it looks whatever else wants to run
}

func newLadder(w Waiting) ladder {
	l := ladder{cores: &machine}
	switch w {
	case Ladder:
		l.budget, l.learns = initialPoll, true
	case Polling:
		l.budget, l.cores = pollingBudget, nil
	case Parked:
	}
	return l
}

// poll looks until a header is there, stop reports true, or the budget is spent; it
// reports whether the header is there. It never yields the processor: a neighbour that
// computes would keep it for a whole slice.
func (l *ladder) poll(header *atomic.Uint64, stop func() bool) (found bool) {
	now := time.Now()
	if l.budget == 0 || l.cores.pollsUseless(now) {
		return false
	}
	for end := now.Add(l.budget); ; {
		for range loadsPerClock {
			if header.Load() != 0 {
				l.grow()
				return true
			}
			pause()
		}
		last := now
		now = time.Now()
		switch {
		case now.Sub(last) > suspendedTime:
			l.cores.noteSuspended(now)
			return false
		case stop():
			return false
		case now.After(end):
			return false
		}
	}
}

// learn is told how long a sleep took.
func (l *ladder) learn(slept time.Duration) {
	if slept < shortSleep {
		l.grow()
		return
	}
	if l.learns {
		if l.budget /= 2; l.budget < minPoll {
			l.budget = 0
		}
	}
}

func (l *ladder) grow() {
	if l.learns {
		l.budget = min(max(2*l.budget, minPoll), maxPoll)
	}
}

// cores knows whether more threads want to run than there are processors. A receiver that
// looks reads the clock every microsecond; when it finds half a millisecond gone, the
// kernel has given its processor to a thread that computes. A peer that answers does
// not run for so long.
type cores struct {
	single       bool // there is one: the sender cannot run while the receiver looks
	epoch        time.Time
	backoffUntil atomic.Int64 // no receiver looks until then, in nanoseconds since began
	lastBackoff  atomic.Int64 // how long that was from the last loss on
}

const (
	// suspendedTime is how long a look is suspended at least by a process that computes. The
	// kernel's slices are of 0.7 ms and more.
	suspendedTime = 500 * time.Microsecond
	// minBackoff is for how long no receiver of this process looks after that. It doubles when
	// looks are suspended again soon after, up to longestLookless: a machine that computes
	// all the time is seldom asked whether it still does.
	minBackoff = time.Second
	maxBackoff = 32 * time.Second
)

// machine is shared by all lanes of the process.
var machine = cores{single: runtime.NumCPU() == 1, epoch: time.Now()}

func (c *cores) pollsUseless(now time.Time) bool {
	return c != nil && (c.single || int64(now.Sub(c.epoch)) < c.backoffUntil.Load())
}

// noteSuspended notes a look that was suspended. Of several goroutines that do so at once the last
// counts.
func (c *cores) noteSuspended(now time.Time) {
	if c == nil {
		return
	}
	at, last := int64(now.Sub(c.epoch)), c.lastBackoff.Load()
	pause := int64(minBackoff)
	if last > 0 && at-c.backoffUntil.Load() < last {
		pause = min(2*last, int64(maxBackoff))
	}
	c.lastBackoff.Store(pause)
	c.backoffUntil.Store(at + pause)
}
