package lane

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestIdleLadderParks: without traffic a side soon parks almost at once, and
// with traffic it looks more often again.
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
	if l.budget != longestLook {
		t.Errorf("a budget of %v after short sleeps", l.budget)
	}
}

// looker is a sleeper on the ladder whose peer does nothing. It counts its looks, each
// of which calls during.
func looker(waiting Waiting, during func()) (s *sleeper, looks *int) {
	looks = new(int)
	l := newLadder(waiting)
	l.cores = &cores{began: time.Now()}
	s = &sleeper{ladder: l, watched: new(atomic.Uint64), ready: func() (bool, error) {
		*looks++
		during()
		return false, nil
	}}
	return s, looks
}

// TestNoLookWithoutAProcessor: a look that was suspended for a slice is the last for a
// while, however long it was to be, and other lanes do not look either.
func TestNoLookWithoutAProcessor(t *testing.T) {
	for _, waiting := range []Waiting{Ladder, Spinning} {
		t.Run(waiting.String(), func(t *testing.T) {
			slice := func() {
				for start := time.Now(); time.Since(start) <= lostSlice; {
				}
			}
			s, looks := looker(waiting, slice)
			if s.climb(nil) || *looks != 1 {
				t.Errorf("%d looks, of which the first was suspended; want it to be the last", *looks)
			}
			other, otherLooks := looker(waiting, func() {})
			other.ladder.cores = s.ladder.cores
			if s.climb(nil) || other.climb(nil) || *looks+*otherLooks != 1 {
				t.Errorf("%d looks after one that was suspended", *looks+*otherLooks-1)
			}
			if !s.ladder.cores.short(time.Now()) || s.ladder.cores.short(time.Now().Add(2*looklessTime)) {
				t.Errorf("processors are short for another time than %v", looklessTime)
			}
		})
	}
}

// TestLooksBecomeRare: each loss that follows soon on the last doubles the time without
// looks, within bounds, and one that follows late does not.
func TestLooksBecomeRare(t *testing.T) {
	now := time.Now()
	c := cores{began: now}
	want := looklessTime
	for range 10 {
		c.lost(now)
		if now = now.Add(want); c.short(now) || !c.short(now.Add(-1)) {
			t.Fatalf("another time without looks than %v", want)
		}
		want = min(2*want, longestLookless)
	}
	now = now.Add(longestLookless)
	c.lost(now)
	if !c.short(now.Add(looklessTime-1)) || c.short(now.Add(looklessTime)) {
		t.Errorf("a late loss is followed by another time without looks than %v", looklessTime)
	}
}

// TestNoLookOnOneProcessor: the peer could not run meanwhile.
func TestNoLookOnOneProcessor(t *testing.T) {
	s, looks := looker(Spinning, func() {})
	s.ladder.cores.alone = true
	if s.climb(nil) || *looks != 0 {
		t.Errorf("%d looks on the only processor", *looks)
	}
}

// TestLookStops: a side that has something better to do looks no more.
func TestLookStops(t *testing.T) {
	s, looks := looker(Spinning, func() {})
	asked := 0
	if s.climb(func() bool { asked++; return asked == 3 }) || asked != 3 || *looks != 3 {
		t.Errorf("asked %d times and looked %d times, want to stop at the third", asked, *looks)
	}
}
