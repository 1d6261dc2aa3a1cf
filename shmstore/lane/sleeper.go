package lane

import (
	"context"
	"sync/atomic"
	"time"
)

// sleeper is how a side waits. The counter is this side's own; the peer reads
// it after every move that could end the wait.
type sleeper struct {
	// asleep is odd while this side is parked or about to be. It is written
	// by this side's goroutine alone, and goes up by one each time.
	asleep *atomic.Uint32
	// watched is the peer's, a head or a header, and must change for the wait
	// to be over; ready reads it anew and says whether that is enough.
	watched *atomic.Uint64
	ready   func() (bool, error)
	waker   Waker
	ladder  ladder
	// ended is nil while the lane is in use.
	ended atomic.Pointer[ending]
}

// ending is why a side waits no more.
type ending struct {
	err error
	// final is false where a wait may still be satisfied by what the peer
	// did before it was gone.
	final bool
}

// wait returns nil as soon as ready holds.
func (s *sleeper) wait(ctx context.Context) error {
	if done, err := s.look(); done {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.climb(nil) {
		if done, err := s.look(); done {
			return err
		}
	}
	start := time.Now()
	err := s.park(ctx)
	s.ladder.learn(time.Since(start))
	return err
}

// hasChanged reports whether a look is due. It changes nothing.
func (s *sleeper) hasChanged() bool {
	if s.ended.Load() != nil {
		return true
	}
	ready, err := s.ready()
	return ready || err != nil
}

// look reports whether the wait is over, and how. It looks at the end of the
// lane before it looks at what the peer wrote: what it published before it was
// gone is then seen, even if both happen at this moment.
func (s *sleeper) look() (done bool, err error) {
	end := s.ended.Load()
	if end != nil && end.final {
		return true, end.err
	}
	if ready, err := s.ready(); ready || err != nil {
		return true, err
	}
	if end != nil {
		return true, end.err
	}
	return false, nil
}

// park sleeps until the wait is over. Each turn is a wake-up.
func (s *sleeper) park(ctx context.Context) error {
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, s.waker.Unpark)
		defer stop()
	}
	for {
		done, err := s.doze()
		if done {
			return err
		}
		if done, err = isOver(ctx); !done {
			err = s.waker.Park()
			done = err != nil
		}
		s.rouse()
		if done {
			return err
		}
	}
}

// doze says that this side is about to park, and looks a last time. The order is what
// keeps a wake-up from being lost: raise, look, park. Each sleep has a number of
// its own, because the peer answers a number only once.
func (s *sleeper) doze() (done bool, err error) {
	s.asleep.Add(1)
	if done, err = s.look(); done {
		s.asleep.Add(1)
	}
	return done, err
}

// rouse says that this side is awake.
func (s *sleeper) rouse() {
	if s.asleep.Load()%2 == 1 {
		s.asleep.Add(1)
	}
}

func isOver(ctx context.Context) (bool, error) {
	err := ctx.Err()
	return err != nil, err
}

// closed is this side's own end, which stands above the peer's.
var closed = &ending{err: ErrClosed, final: true}

// end makes waits return, now and later. The first end stays, but for closed,
// which replaces another.
func (s *sleeper) end(e *ending) {
	for {
		first := s.ended.Load()
		if first != nil && e != closed {
			break
		}
		if s.ended.CompareAndSwap(first, e) {
			break
		}
	}
	s.waker.Unpark()
}

// bell wakes the peer, once for each of its sleeps.
type bell struct {
	asleep   *atomic.Uint32 // the peer's; any value is harmless
	answered uint32
}

// move stores what the peer watches, looks at the peer's counter, and reports
// whether the peer is in a sleep that was not yet answered. The store is a
// fence: either the peer sees it when it looks a last time, or its counter is
// seen here.
func (b *bell) move(watched *atomic.Uint64, to uint64) (sleep uint32, wanted bool) {
	watched.Store(to)
	sleep = b.asleep.Load()
	return sleep, sleep%2 == 1 && sleep != b.answered
}
