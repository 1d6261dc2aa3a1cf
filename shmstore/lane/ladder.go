package lane

import (
	"runtime"
	"time"
)

const (
	// ladderLooks come first, without a pause: about a microsecond together, which
	// is what a peer takes that is awake, and little more than one yield costs.
	ladderLooks = 256
	// ladderYields is the most often that the processor is yielded before a
	// side parks, and firstYields how often in a new lane.
	ladderYields = 128
	firstYields  = 16
	// shortSleep is a sleep that should rather have been spent yielding. A
	// park with its wake-up costs some microseconds, of two processors.
	shortSleep = 50 * time.Microsecond

	// A side that spins yields between bursts: with too few processors, the
	// peer that it waits for may need this one. A burst takes some
	// microseconds.
	spinBursts = 1 << 9
	spinLooks  = 1 << 8
)

// ladder bounds how often a side looks before it parks.
type ladder struct {
	waiting Waiting
	// yields is the present bound, which learns, for Ladder alone.
	yields int
}

func newLadder(w Waiting) ladder { return ladder{waiting: w, yields: firstYields} }

// climb looks until the wait is over or the bound is reached.
func (s *sleeper) climb() (done bool, err error) {
	switch s.ladder.waiting {
	case Parked:
		return false, nil
	case Spinning:
		return s.spin()
	case Sharing:
		return s.share()
	case Ladder:
	}
	for range ladderLooks {
		if done, err = s.look(); done {
			return done, err
		}
	}
	for range s.ladder.yields {
		yield()
		if done, err = s.look(); done {
			s.ladder.grow()
			return done, err
		}
	}
	return false, nil
}

// share looks between runs of other goroutines, and then lets other processes
// run.
func (s *sleeper) share() (done bool, err error) {
	for range s.ladder.yields {
		runtime.Gosched()
		if done, err = s.look(); done {
			s.ladder.grow()
			return done, err
		}
		yield()
		if done, err = s.look(); done {
			s.ladder.grow()
			return done, err
		}
	}
	return false, nil
}

// spin looks closely only when the peer has moved. What the loop does in
// between is a load and a pause and nothing else: it sees a move the sooner.
func (s *sleeper) spin() (done bool, err error) {
	for range spinBursts {
		seen := s.watched.Load()
		if done, err = s.look(); done {
			return done, err
		}
		moved := false
		for i := 0; i < spinLooks && !moved; i++ {
			pause()
			moved = s.watched.Load() != seen
		}
		if !moved {
			yield()
		}
	}
	return false, nil
}

// learn is told how long a park took.
func (l *ladder) learn(slept time.Duration) {
	if slept < shortSleep {
		l.grow()
	} else {
		l.yields /= 2
	}
}

func (l *ladder) grow() { l.yields = min(2*l.yields+1, ladderYields) }
