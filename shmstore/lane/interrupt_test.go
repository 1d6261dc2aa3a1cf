package lane

import (
	"errors"
	"testing"
)

// TestInterrupt: one wait ends, behind all that was published before, and the lane
// goes on.
func TestInterrupt(t *testing.T) {
	for _, waiting := range []Waiting{Ladder, Parked, Spinning} {
		t.Run(waiting.String(), func(t *testing.T) {
			s, r := heapLane(t, 1<<10, Options{Waiting: waiting})
			mustSend(t, s, 8)
			r.Interrupt()
			r.Interrupt() // counts as one
			if err := r.Wait(t.Context()); err != nil {
				t.Fatalf("a frame that was published before was not received: %v", err)
			}
			receiveAll(t, r)
			if err := r.Err(); err != nil {
				t.Errorf("the lane is said to have ended: %v", err)
			}
			if err := r.Wait(t.Context()); !errors.Is(err, ErrInterrupted) {
				t.Fatalf("the wait ended with %v, want %v", err, ErrInterrupted)
			}
			mustSend(t, s, 8)
			if err := r.Wait(t.Context()); err != nil {
				t.Fatalf("the lane does not go on: %v", err)
			}
		})
	}
}

// TestInterruptWhileParked: a side that has parked is woken.
func TestInterruptWhileParked(t *testing.T) {
	parked := make(chan struct{}, 1)
	theirs, w := ChannelWakers()
	_, r := heapLaneWith(t, 1<<10, Options{Waiting: Parked}, theirs, announcer{Waker: w, parked: parked})
	ended := make(chan error)
	go func() { ended <- r.Wait(t.Context()) }()
	<-parked
	r.Interrupt()
	if err := <-ended; !errors.Is(err, ErrInterrupted) {
		t.Errorf("the wait ended with %v, want %v", err, ErrInterrupted)
	}
}

// TestInterruptSeesWhatCameBefore: a frame is received that was published between
// a look at the lane and the interrupt.
func TestInterruptSeesWhatCameBefore(t *testing.T) {
	s, r := heapLane(t, 1<<10, Options{Waiting: Parked})
	look := r.sleeper.ready
	r.sleeper.ready = func() (bool, error) {
		ready, err := look()
		if !ready && s.published == 0 {
			mustSend(t, s, 8)
			r.Interrupt()
		}
		return ready, err
	}
	if err := r.Wait(t.Context()); err != nil {
		t.Errorf("a frame published while the receiver looked was not received: %v", err)
	}
}

// TestInterruptIsNoEnd: what ends a lane stays, whenever the interrupt comes.
func TestInterruptIsNoEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(r *Receiver)
		want error
	}{
		"fail":  {end: func(r *Receiver) { r.Fail(nil) }, want: ErrPeerGone},
		"close": {end: (*Receiver).Close, want: ErrClosed},
	} {
		for _, before := range []bool{true, false} {
			_, r := heapLane(t, 1<<10, Options{Waiting: Parked})
			if before {
				r.Interrupt()
			}
			tc.end(r)
			if !before {
				r.Interrupt()
			}
			for range 2 {
				if err := r.Wait(t.Context()); !errors.Is(err, tc.want) {
					t.Errorf("%s, interrupted before: %v: the wait ended with %v, want %v", name, before, err, tc.want)
				}
			}
		}
	}
}
