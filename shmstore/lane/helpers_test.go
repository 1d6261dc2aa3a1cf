package lane

import (
	"errors"
	"runtime"
	"testing"
)

func testGeometry(tb interface{ Fatal(...any) }, capacityBytes int) Geometry {
	geo, err := Layout(7, capacityBytes)
	if err != nil {
		tb.Fatal(err)
	}
	return geo
}

// heapLane is a lane within this process, whose receiver is never woken.
func heapLane(tb interface{ Fatal(...any) }, capacityBytes int) (*Sender, *Receiver) {
	return heapLaneWith(tb, capacityBytes, Options{}, func() {})
}

func heapLaneWith(tb interface{ Fatal(...any) }, capacityBytes int, opts Options, wake func()) (*Sender, *Receiver) {
	geo := testGeometry(tb, capacityBytes)
	a, b := geo.heapSegments()
	s, err := NewSender(geo, a, b, wake)
	if err != nil {
		tb.Fatal(err)
	}
	r, err := NewReceiver(geo, b, a, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return s, r
}

// send sends a frame as soon as there is space, unless the receiver is gone.
func send(s *Sender, kind Kind, payload []byte, gone <-chan struct{}) error {
	for {
		err := s.TrySend(kind, payload)
		if !errors.Is(err, ErrFull) {
			return err
		}
		select {
		case <-gone:
			return errGone
		default:
			runtime.Gosched()
		}
	}
}

var errGone = errors.New("the receiver is gone")

// await waits for a frame: it polls, and then sleeps until the sender wakes it. If sleep fails,
// frames that were sent before are received first.
func await(r *Receiver, sleep func() error) error {
	for !r.Poll(never) && r.PrepareSleep() {
		err := sleep()
		r.EndSleep()
		if err != nil && r.header().Load() == 0 {
			return err
		}
	}
	return r.Err()
}

// never is the stop function of a poll that nothing interrupts.
func never() bool { return false }

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
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
}

func receiveOne(r *Receiver) {
	r.Next()
	r.Advance()
}
