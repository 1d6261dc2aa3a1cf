package lane

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var errLost = errors.New("parked with nobody to wake it: a wake-up was lost")

// countingWaker parks only if there is a wake-up to end it with. For tests in
// which the peer moves between the steps of the waiter, on one goroutine.
type countingWaker struct {
	wakes int // what the peer sent and Park did not take
	sent  int
	parks int
}

func (w *countingWaker) Park() error {
	w.parks++
	if w.wakes == 0 {
		return errLost
	}
	w.wakes--
	return nil
}
func (w *countingWaker) Unpark() { w.wakes++ }

// wakes is the waker of the other side of it.
type wakes struct{ *countingWaker }

func (w wakes) Park() error { return errLost }
func (w wakes) Unpark()     {}
func (w wakes) Wake() {
	w.sent++
	w.countingWaker.wakes++
}
func (w *countingWaker) Wake() {}

// TestRaiseThenLook: whenever the peer moves, directly after any look of the
// waiter, the waiter sees the move or is woken. A side that looks before it
// raises its counter parks for ever.
func TestRaiseThenLook(t *testing.T) {
	const looks = 4
	for _, side := range []string{"receiver", "sender"} {
		for moveAfter := 1; moveAfter <= looks; moveAfter++ {
			waker := &countingWaker{}
			var s *Sender
			var r *Receiver
			var waiter *sleeper
			var move func()
			var wait func() error
			if side == "receiver" {
				s, r = heapLaneWith(t, 1<<10, Options{Waiting: Parked}, wakes{waker}, waker)
				waiter, wait = &r.sleeper, func() error { return r.Wait(t.Context()) }
				move = func() { mustSend(t, s, 8) }
			} else {
				s, r = heapLaneWith(t, 1<<10, Options{Waiting: Parked}, waker, wakes{waker})
				for s.TrySend(1, make([]byte, 100)) == nil {
				}
				waiter, wait = &s.sleeper, func() error { return s.Wait(t.Context(), 100) }
				move = func() { receiveAll(t, r) }
			}
			look, n := waiter.ready, 0
			waiter.ready = func() (bool, error) {
				ready, err := look()
				if n++; n == moveAfter {
					move()
				} else if n < moveAfter {
					waker.wakes = 1 // for nothing, so that it looks again
				}
				return ready, err
			}
			if err := wait(); err != nil {
				t.Errorf("%s, moved after look %d: %v", side, moveAfter, err)
			}
		}
	}
}

// TestStoreThenLook: a side stores its position before it looks at the peer's
// counter. Here the look fails, and the position must be there already.
func TestStoreThenLook(t *testing.T) {
	var position atomic.Uint64
	func() {
		defer func() { _ = recover() }()
		(&bell{asleep: nil}).move(&position, 8)
		t.Error("a counter that is not there was read")
	}()
	if position.Load() != 8 {
		t.Error("the counter was read before the position was stored: a wake-up can be lost")
	}
}

// TestOneWakeASleep: a sleep is answered once, and one that is over is not.
func TestOneWakeASleep(t *testing.T) {
	waker := &countingWaker{}
	s, r := heapLaneWith(t, 1<<12, Options{Waiting: Parked}, wakes{waker}, waker)
	for range 3 {
		if err := r.Wait(t.Context()); !errors.Is(err, errLost) {
			t.Fatal(err)
		}
		mustSend(t, s, 8)
		if waker.sent != 0 {
			t.Fatal("a side that is awake was woken")
		}
		receiveAll(t, r)
	}
	for sleep := 1; sleep <= 3; sleep++ {
		r.sleeper.asleep.Add(1)
		for range 5 {
			mustSend(t, s, 8)
		}
		r.sleeper.asleep.Add(1)
		if waker.sent != sleep {
			t.Errorf("%d wake-ups for %d sleeps", waker.sent, sleep)
		}
		receiveAll(t, r)
	}
}

// TestWatchesTheNextHeader: what a side that spins looks at is what the next
// frame changes.
func TestWatchesTheNextHeader(t *testing.T) {
	s, r := heapLane(t, 1<<10, Options{Waiting: Spinning})
	look := r.sleeper.ready
	r.sleeper.ready = func() (bool, error) {
		ready, err := look()
		if !ready {
			before := r.sleeper.watched.Load()
			mustSend(t, s, 100)
			if r.sleeper.watched.Load() == before {
				t.Error("a frame was sent, and what is watched did not change")
			}
		}
		return ready, err
	}
	for range 20 {
		if err := r.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		receiveAll(t, r)
	}
}

// parkFunc is a waker that does something instead of sleeping.
type parkFunc func() error

func (f parkFunc) Park() error { return f() }
func (f parkFunc) Unpark()     {}
func (f parkFunc) Wake()       {}

// TestEachSleepHasItsNumber: a side that was woken for nothing sleeps again
// under another number, because the old one counts as answered.
func TestEachSleepHasItsNumber(t *testing.T) {
	var r *Receiver
	var numbers []uint32
	_, r = heapLaneWith(t, 1<<10, Options{Waiting: Parked}, &limitedWaker{}, parkFunc(func() error {
		numbers = append(numbers, r.page.asleep.Load())
		if len(numbers) == 3 {
			return errEnough
		}
		return nil
	}))
	if err := r.Wait(t.Context()); !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]uint32{1, 3, 5}, numbers); diff != "" || r.page.asleep.Load() != 6 {
		t.Errorf("numbers of sleeps, and then %d:\n%s", r.page.asleep.Load(), diff)
	}
}

// TestWakeForRoom: a sender that waits is woken when there is the room that it
// waits for, and not for every frame before.
func TestWakeForRoom(t *testing.T) {
	waker := &countingWaker{}
	s, r := heapLaneWith(t, 1<<12, Options{Waiting: Parked}, waker, wakes{waker})
	sent := 0
	for ; s.TrySend(1, make([]byte, 8)) == nil; sent++ {
	}
	if err := s.Wait(t.Context(), 8); !errors.Is(err, errLost) {
		t.Fatal(err)
	}
	s.sleeper.asleep.Add(1)
	received := 0
	for ; waker.sent == 0 && received < sent; received++ {
		r.Next()
		r.Advance()
	}
	if want := 1 << 12 / framesPerLane / (headerBytes + 8); received != want {
		t.Errorf("woken after %d frames of %d, want %d", received, sent, want)
	}
}

// pairWaker tells the two reasons to wake apart: the peer's wake-ups and this
// side's own.
type pairWaker struct {
	mu           sync.Mutex
	changed      *sync.Cond
	wakes, knock int
	lost         bool
	stalled      atomic.Int64
}

func newPairWaker() *pairWaker {
	w := &pairWaker{}
	w.changed = sync.NewCond(&w.mu)
	return w
}

func (w *pairWaker) Park() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.wakes == 0 && w.knock == 0 {
		w.changed.Wait()
	}
	w.lost = w.lost || w.wakes == 0
	w.wakes, w.knock = 0, 0
	return nil
}

func (w *pairWaker) add(n *int) {
	w.mu.Lock()
	*n++
	w.mu.Unlock()
	w.changed.Signal()
}

// forget drops what came too late for the last round.
func (w *pairWaker) forget() {
	w.mu.Lock()
	w.knock, w.wakes = 0, 0
	w.mu.Unlock()
}

func (w *pairWaker) Unpark() { w.add(&w.knock) }
func (w *pairWaker) Wake()   {}

type wakesPair struct{ *pairWaker }

func (w wakesPair) Park() error { return errLost }
func (w wakesPair) Unpark()     {}
func (w wakesPair) Wake()       { w.add(&w.wakes) }

// TestNoWakeUpIsLost lets both sides meet again and again, one parking just
// when the other moves. The mover knocks after its move: a waiter that needed
// the knock was not woken, although it had been asleep.
func TestNoWakeUpIsLost(t *testing.T) {
	const rounds = 100_000 / raceSlowdown
	run := func(t *testing.T, w *pairWaker, prepare func(), move, wait func() error) {
		var begun, moved atomic.Int64
		failed := make(chan error, 1)
		go func() {
			for round := range int64(rounds) {
				meet(&begun, round+1)
				if err := move(); err != nil {
					failed <- err
					w.Unpark()
					return
				}
				w.Unpark()
				moved.Store(round + 1)
			}
			failed <- nil
		}()
		for round := range int64(rounds) {
			w.forget()
			prepare()
			begun.Store(round + 1)
			stall(w)
			if err := wait(); err != nil {
				t.Fatal(err)
			}
			meet(&moved, round+1)
			if w.lost {
				t.Fatalf("round %d: the move did not wake the waiter", round)
			}
		}
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	t.Run("receiver", func(t *testing.T) {
		w := newPairWaker()
		s, r := heapLaneWith(t, 1<<10, Options{Waiting: Parked}, wakesPair{w}, w)
		run(t, w, func() {}, func() error { return s.TrySend(1) }, func() error {
			err := r.Wait(context.Background())
			receiveAll(t, r)
			return err
		})
	})
	t.Run("sender", func(t *testing.T) {
		w := newPairWaker()
		s, r := heapLaneWith(t, 1<<10, Options{Waiting: Parked}, w, wakesPair{w})
		full := make([]byte, s.maxFrame)
		fill := func() {
			for s.TrySend(1, full) == nil {
			}
		}
		empty := func() error {
			for _, _, ok := r.Next(); ok; _, _, ok = r.Next() {
			}
			r.Advance()
			return r.Err()
		}
		run(t, w, fill, empty, func() error { return s.Wait(context.Background(), len(full)) })
	})
}

// meet waits for the other side to come to a round.
func meet(at *atomic.Int64, round int64) {
	for i := 1; at.Load() < round; i++ {
		if i%1000 == 0 {
			runtime.Gosched()
		}
	}
}

// stall takes a while, a different one each time, so that the two sides meet in
// all ways.
func stall(w *pairWaker) {
	for range rand.IntN(200) {
		w.stalled.Add(1)
	}
}

// TestFailKeepsFrames: what was published before the sender was gone is
// received, even when both happen while the receiver looks.
func TestFailKeepsFrames(t *testing.T) {
	cause := errors.New("killed")
	const rounds = 2_000
	for range rounds {
		s, r := heapLane(t, 1<<10, Options{Waiting: Parked})
		go func() {
			_ = s.TrySend(1)
			r.Fail(cause)
		}()
		if err := r.Wait(t.Context()); err != nil {
			t.Fatalf("a published frame was not received: %v", err)
		}
		receiveAll(t, r)
		if err := r.Wait(t.Context()); !errors.Is(err, ErrPeerGone) || !errors.Is(err, cause) {
			t.Fatal(err)
		}
	}
	// The same, at the one moment that matters: between the two looks.
	s, r := heapLane(t, 1<<10, Options{Waiting: Parked})
	look := r.sleeper.ready
	r.sleeper.ready = func() (bool, error) {
		ready, err := look()
		if !ready && s.published == 0 {
			mustSend(t, s, 8)
			r.Fail(cause)
		}
		return ready, err
	}
	if err := r.Wait(t.Context()); err != nil {
		t.Errorf("a frame published while the receiver looked was not received: %v", err)
	}
}

// TestWaitsEnd: whatever ends a wait ends it at both sides, parked or not, and those that
// come later.
func TestWaitsEnd(t *testing.T) {
	cause := errors.New("killed")
	for _, tc := range []struct {
		name string
		end  func(s *Sender, r *Receiver, cancel func())
		want error
		or   error // what may have ended the wait before
	}{
		{name: "fail", want: ErrPeerGone, end: func(s *Sender, r *Receiver, _ func()) { s.Fail(cause); r.Fail(cause) }},
		{name: "fail without a cause", want: ErrPeerGone, end: func(s *Sender, r *Receiver, _ func()) { s.Fail(nil); r.Fail(nil) }},
		{name: "close", want: ErrClosed, end: func(s *Sender, r *Receiver, _ func()) { s.Close(); s.Close(); r.Close() }},
		{name: "close after fail", want: ErrClosed, or: ErrPeerGone, end: func(s *Sender, r *Receiver, _ func()) { s.Fail(nil); s.Close(); r.Fail(nil); r.Close() }},
		{name: "fail after close", want: ErrClosed, end: func(s *Sender, r *Receiver, _ func()) { s.Close(); s.Fail(nil); r.Close(); r.Fail(nil) }},
		{name: "context", want: context.Canceled, end: func(_ *Sender, _ *Receiver, cancel func()) { cancel() }},
	} {
		for _, waiting := range []Waiting{Ladder, Parked, Spinning, Polling} {
			t.Run(tc.name+"/"+waiting.String(), func(t *testing.T) {
				parked := make(chan struct{}, 2)
				announcing := func() Waker {
					w, _ := ChannelWakers()
					return announcer{Waker: w, parked: parked}
				}
				s, _ := heapLaneWith(t, 1<<10, Options{Waiting: waiting}, announcing(), announcing())
				for s.TrySend(1, make([]byte, 100)) == nil {
				}
				_, r := heapLaneWith(t, 1<<10, Options{Waiting: waiting}, announcing(), announcing())
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				errs := make(chan error, 2)
				go func() { errs <- s.Send(ctx, 1, make([]byte, 100)) }()
				go func() { errs <- r.Wait(ctx) }()
				<-parked
				<-parked
				tc.end(s, r, cancel)
				for range 2 {
					if err := <-errs; !errors.Is(err, tc.want) && (tc.or == nil || !errors.Is(err, tc.or)) {
						t.Errorf("the wait ended with %v, want %v", err, tc.want)
					}
				}
				for _, err := range []error{s.Wait(ctx, 100), r.Wait(ctx)} {
					if !errors.Is(err, tc.want) {
						t.Errorf("a later wait ended with %v, want %v", err, tc.want)
					}
				}
			})
		}
	}
}

// announcer says when its side is about to park.
type announcer struct {
	Waker
	parked chan<- struct{}
}

func (w announcer) Park() error {
	select {
	case w.parked <- struct{}{}:
	default: // it was seen to park, and does so again
	}
	return w.Waker.Park()
}

func mustSend(t *testing.T, s *Sender, n int) {
	t.Helper()
	if err := s.TrySend(1, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

func receiveAll(t *testing.T, r *Receiver) {
	t.Helper()
	for _, _, ok := r.Next(); ok; _, _, ok = r.Next() {
	}
	r.Advance()
	if err := r.err; err != nil {
		t.Fatal(err)
	}
}

func receiveOne(r *Receiver) {
	r.Next()
	r.Advance()
}
