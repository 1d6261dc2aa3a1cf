package lane

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestIdleLadderParks: without traffic a receiver soon looks no more, and with traffic it
// looks for longer again.
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

// looker is a ladder of its own, and a look at a header that no sender stores. It counts how often
// the looking stops for a moment, which it does to call during.
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

// TestNoPollWithoutAProcessor: a look that was suspended for a slice is the last for a
// while, and other lanes do not look either.
func TestNoPollWithoutAProcessor(t *testing.T) {
	l, look, stops := looker(Ladder, func() {
		for start := time.Now(); time.Since(start) <= suspendedTime; {
		}
	})
	l.budget = time.Hour // else the slice ends the look by itself
	if look() || *stops != 1 {
		t.Errorf("looked on %d times, of which the first was suspended; want it to be the last", *stops)
	}
	other, otherLook, otherStops := looker(Ladder, func() {})
	other.cores = l.cores
	if look() || otherLook() || *stops+*otherStops != 1 {
		t.Errorf("looked %d times after a look that was suspended", *stops+*otherStops-1)
	}
	if !l.cores.pollsUseless(time.Now()) || l.cores.pollsUseless(time.Now().Add(2*minBackoff)) {
		t.Errorf("processors are short for another time than %v", minBackoff)
	}
}

// TestPollsBecomeRare: each loss that follows soon on the last doubles the time without
// looks, within bounds, and one that follows late does not.
func TestPollsBecomeRare(t *testing.T) {
	now := time.Now()
	c := cores{epoch: now}
	want := minBackoff
	for range 10 {
		c.noteSuspended(now)
		if now = now.Add(want); c.pollsUseless(now) || !c.pollsUseless(now.Add(-1)) {
			t.Fatalf("another time without looks than %v", want)
		}
		want = min(2*want, maxBackoff)
	}
	now = now.Add(maxBackoff)
	c.noteSuspended(now)
	if !c.pollsUseless(now.Add(minBackoff-1)) || c.pollsUseless(now.Add(minBackoff)) {
		t.Errorf("a late loss is followed by another time without looks than %v", minBackoff)
	}
}

// TestParkedDoesNotPoll: a receiver that is to park does not look, and none does on one processor, on which
// the sender could not run meanwhile.
func TestParkedDoesNotPoll(t *testing.T) {
	_, parked, stops := looker(Parked, func() {})
	l, alone, aloneStops := looker(Ladder, func() {})
	l.cores.single = true
	if parked() || alone() || *stops != 0 || *aloneStops != 0 {
		t.Errorf("looked %d times in a lane that parks, %d on the only processor", *stops, *aloneStops)
	}
}

// TestPollStops: a receiver that has something better to do looks no more.
func TestPollStops(t *testing.T) {
	l := newLadder(Polling)
	asked := 0
	if l.poll(new(atomic.Uint64), func() bool { asked++; return asked == 3 }) || asked != 3 {
		t.Errorf("asked %d times, want to stop at the third", asked)
	}
}
