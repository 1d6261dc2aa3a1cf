package lane

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReceiverChecksAfterRaising: a receiver raises its counter before it checks a last time. Here the
// check fails, and the counter must be raised already.
func TestReceiverChecksAfterRaising(t *testing.T) {
	_, r := heapLane(t, 1<<10)
	r.frames = nil
	func() {
		defer func() { _ = recover() }()
		r.PrepareSleep()
		t.Error("a header outside the mapping was read")
	}()
	if r.page.asleep.Load() != 1 {
		t.Error("the header was read before the counter was raised: a wake-up can be lost")
	}
}

// TestSenderChecksAfterStoring: a sender stores a header before it reads the receiver's counter. Here
// the read fails, and the frame must be published already.
func TestSenderChecksAfterStoring(t *testing.T) {
	s, r := heapLane(t, 1<<10)
	s.peer = nil
	func() {
		defer func() { _ = recover() }()
		_ = s.TrySend(1, nil)
		t.Error("a counter outside the mapping was read")
	}()
	if _, _, ok := r.Next(); !ok {
		t.Error("the counter was read before the header was stored: a wake-up can be lost")
	}
}

// TestOneWakePerSleep: a sender wakes the receiver once for a sleep, not for one that has ended, and not for one
// that it has marked as woken.
func TestOneWakePerSleep(t *testing.T) {
	wakes := 0
	s, r := heapLaneWith(t, 1<<12, Options{}, func() { wakes++ })
	for sleep := 1; sleep <= 3; sleep++ {
		if !r.PrepareSleep() {
			t.Fatal("there is no frame, and the receiver does not sleep")
		}
		for range 5 {
			mustSend(t, s, 8)
		}
		r.EndSleep()
		mustSend(t, s, 8)
		if wakes != sleep {
			t.Errorf("%d wake-ups for %d sleeps", wakes, sleep)
		}
		receiveAll(t, r)
	}
	r.PrepareSleep()
	sleep, sleeps := s.ReceiverSleeps()
	if s.MarkWoken(sleep); !sleeps {
		t.Error("the receiver sleeps, and the sender does not see it")
	}
	if _, sleeps := s.ReceiverSleeps(); sleeps {
		t.Error("the receiver was woken, and sleeps still")
	}
	mustSend(t, s, 8)
	if wakes != 3 {
		t.Error("a receiver that was woken by other means was woken again")
	}
}

// TestNoSleepWithFrames: a receiver that has a frame, or whose lane has ended, does not sleep, and
// is not woken.
func TestNoSleepWithFrames(t *testing.T) {
	wakes := 0
	s, r := heapLaneWith(t, 1<<10, Options{}, func() { wakes++ })
	mustSend(t, s, 8)
	dozed := r.PrepareSleep()
	mustSend(t, s, 8)
	if dozed || wakes != 0 {
		t.Errorf("slept beside a frame: %v; woken %d times", dozed, wakes)
	}
	receiveAll(t, r)
	r.header().Store(1)
	r.Next()
	if r.Err() == nil || r.PrepareSleep() || r.page.asleep.Load()%2 == 1 {
		t.Errorf("sleeps in a lane that has ended: %v", r.Err())
	}
}

// TestEachSleepHasItsNumber: a receiver that was woken without a frame sleeps again with
// another number, because the sender has woken it for the old one.
func TestEachSleepHasItsNumber(t *testing.T) {
	_, r := heapLane(t, 1<<10)
	var numbers []uint32
	for range 3 {
		r.PrepareSleep()
		numbers = append(numbers, r.page.asleep.Load())
		r.EndSleep()
		r.EndSleep() // changes nothing if the receiver does not sleep
	}
	if diff := cmp.Diff([]uint32{1, 3, 5}, numbers); diff != "" || r.page.asleep.Load() != 6 {
		t.Errorf("numbers of sleeps, and then %d:\n%s", r.page.asleep.Load(), diff)
	}
}

// TestPollFindsTheNextFrame: the next frame changes the header that a receiver polls.
func TestPollFindsTheNextFrame(t *testing.T) {
	s, r := heapLaneWith(t, 1<<10, Options{Waiting: Polling}, func() {})
	for n := 0; n < 20; n++ {
		sent := false
		found := r.Poll(func() bool {
			stop := sent // it has polled since the frame was sent
			if !sent {
				mustSend(t, s, 100)
				sent = true
			}
			return stop
		})
		switch {
		case !sent: // the poll was suspended for a slice, and ended
			n--
		case !found:
			t.Fatal("a frame was sent, and not found")
		}
		receiveAll(t, r)
	}
}

// TestNoWakeUpIsLost lets both sides meet again and again, the receiver going to sleep just
// when the sender sends: it sees the frame, or is woken.
func TestNoWakeUpIsLost(t *testing.T) {
	const rounds = 100_000 / raceSlowdown
	var begun, sent, stalled atomic.Int64
	woken := make(chan struct{}, 1)
	s, r := heapLaneWith(t, 1<<10, Options{}, func() { woken <- struct{}{} })
	failed := make(chan error, 1)
	go func() {
		var err error
		for round := int64(1); round <= rounds && err == nil; round++ {
			meet(&begun, round)
			err = s.TrySend(1, nil)
			sent.Store(round)
		}
		failed <- err
	}()
	for round := int64(1); round <= rounds; round++ {
		begun.Store(round)
		for range rand.IntN(200) { // a different time each round, so that all interleavings occur
			stalled.Add(1)
		}
		sleeps := r.PrepareSleep()
		meet(&sent, round)
		if sleeps && len(woken) == 0 {
			t.Fatalf("round %d: the receiver sleeps, and the frame did not wake it", round)
		}
		r.EndSleep()
		for len(woken) > 0 {
			<-woken
		}
		receiveAll(t, r)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// meet waits for the other side to reach a round.
func meet(at *atomic.Int64, round int64) {
	for i := 1; at.Load() < round; i++ {
		if i%1000 == 0 {
			runtime.Gosched()
		}
	}
}
