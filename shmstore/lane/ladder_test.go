package lane

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestIdleLadderParks: without traffic a receiver soon stops polling, and with traffic it
// polls for longer again.
func TestIdleLadderParks(t *testing.T) {
	l := newLadder(Ladder)
	for range 8 {
		l.learn(2 * shortSleep)
	}
	if l.budget != 0 {
		t.Errorf("a budget of %v after long sleeps", l.budget)
	}
	for range 10 {
		l.learn(shortSleep / 2)
	}
	if l.budget != maxPoll {
		t.Errorf("a budget of %v after short sleeps", l.budget)
	}
}

// looker is a ladder of its own that polls a header that no sender stores. It counts the calls of stop,
// which also calls during.
func looker(waiting Waiting, during func()) (l *ladder, look func() bool, stops *int) {
	made := newLadder(waiting)
	made.cores = &cores{epoch: time.Now()}
	stops = new(int)
	look = func() bool {
		return made.poll(new(atomic.Uint64), func() bool {
			*stops++
			during()
			return false
		})
	}
	return &made, look, stops
}

// TestNoPollWithoutAProcessor: after a poll that was suspended for a slice there is no poll for a
// while, on this and on other lanes.
func TestNoPollWithoutAProcessor(t *testing.T) {
	l, look, stops := looker(Ladder, func() {
		for start := time.Now(); time.Since(start) <= suspendedTime; {
		}
	})
	l.budget = time.Hour // with a short budget the slice would end the poll
	if look() || *stops != 1 {
		t.Errorf("%d polls, of which the first was suspended; want one", *stops)
	}
	other, otherLook, otherStops := looker(Ladder, func() {})
	other.cores = l.cores
	if look() || otherLook() || *stops+*otherStops != 1 {
		t.Errorf("%d polls after a suspended one", *stops+*otherStops-1)
	}
	if !l.cores.pollsUseless(time.Now()) || l.cores.pollsUseless(time.Now().Add(2*minBackoff)) {
		t.Errorf("the backoff is not %v", minBackoff)
	}
}

// TestPollsBecomeRare: each suspended poll that follows soon on the last doubles the backoff,
// within bounds, and one that follows late does not.
func TestPollsBecomeRare(t *testing.T) {
	now := time.Now()
	c := cores{epoch: now}
	want := minBackoff
	for range 10 {
		c.noteSuspended(now)
		if now = now.Add(want); c.pollsUseless(now) || !c.pollsUseless(now.Add(-1)) {
			t.Fatalf("the backoff is not %v", want)
		}
		want = min(2*want, maxBackoff)
	}
	now = now.Add(maxBackoff)
	c.noteSuspended(now)
	if !c.pollsUseless(now.Add(minBackoff-1)) || c.pollsUseless(now.Add(minBackoff)) {
		t.Errorf("the backoff after a late suspension is not %v", minBackoff)
	}
}

// TestParkedDoesNotPoll: a receiver with Parked does not poll, and none does on a single processor, on which
// the sender could not run meanwhile.
func TestParkedDoesNotPoll(t *testing.T) {
	_, parked, stops := looker(Parked, func() {})
	l, alone, aloneStops := looker(Ladder, func() {})
	l.cores.single = true
	if parked() || alone() || *stops != 0 || *aloneStops != 0 {
		t.Errorf("%d polls with Parked, %d on a single processor", *stops, *aloneStops)
	}
}

// TestPollStops: a receiver stops polling when stop reports true.
func TestPollStops(t *testing.T) {
	l := newLadder(Polling)
	asked := 0
	if l.poll(new(atomic.Uint64), func() bool { asked++; return asked == 3 }) || asked != 3 {
		t.Errorf("stop was called %d times, want 3", asked)
	}
}
