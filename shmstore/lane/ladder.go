package lane

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// maxPoll is the longest poll of a receiver with Ladder before it sleeps, and
	// initialPoll that in a new lane. Two sleeps with their wake-ups cost about as
	// much, on two processors: a longer poll costs more than it can save.
	maxPoll     = 100 * time.Microsecond
	initialPoll = 50 * time.Microsecond
	// minPoll is the shortest poll. A shorter budget is 0, and grows from minPoll.
	minPoll = time.Microsecond
	// shortSleep is a sleep that polling should have replaced. It is longer than
	// maxPoll: if both processes sleep, each sleep lasts for two wake-ups and the work
	// of the other process, and with maxPoll as the bound neither would begin to poll.
	shortSleep = 2 * maxPoll
	// pollingBudget is how long a receiver with Polling polls.
	pollingBudget = 5 * time.Millisecond
	// loadsPerClock is how often the header is loaded between two readings of the
	// clock: about a microsecond.
	loadsPerClock = 32
)

// ladder bounds how long a receiver polls. With a budget of 0 it does not poll.
type ladder struct {
	budget time.Duration
	learns bool   // the budget grows and shrinks with the success of polls
	cores  *cores // nil: it polls even if more threads want to run than there are processors
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

// poll loads the header until it is not zero, stop reports true, or the budget is spent;
// it reports whether the header is not zero. It never yields the processor: a thread that
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

// learn adapts the budget to how long a sleep took.
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

// cores detects whether more threads want to run than there are processors. A poll
// reads the clock every microsecond; if half a millisecond passed between two readings, the
// kernel has given its processor to a thread that computes. A peer that answers does
// not run for so long.
type cores struct {
	single       bool // one processor: the sender cannot run while the receiver polls
	epoch        time.Time
	backoffUntil atomic.Int64 // no receiver polls until then, in nanoseconds since epoch
	lastBackoff  atomic.Int64 // the length of the last backoff, in nanoseconds
}

const (
	// suspendedTime is the least time for which a thread that computes suspends a poll. The
	// kernel's slices are of 0.7 ms and more.
	suspendedTime = 500 * time.Microsecond
	// minBackoff is how long no receiver of this process polls after a suspended poll. It
	// doubles, up to maxBackoff, if a poll is suspended again within the length of the last
	// backoff after its end: so a machine that computes all the time is polled seldom.
	minBackoff = time.Second
	maxBackoff = 32 * time.Second
)

// machine is shared by all lanes of the process.
var machine = cores{single: runtime.NumCPU() == 1, epoch: time.Now()}

func (c *cores) pollsUseless(now time.Time) bool {
	return c != nil && (c.single || int64(now.Sub(c.epoch)) < c.backoffUntil.Load())
}

// noteSuspended begins a backoff after a poll that was suspended. Of several goroutines
// that call it at once the last counts.
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
