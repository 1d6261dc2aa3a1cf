package lane

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTwoProcesses sends checked frames from one process to another, each way
// and with each way to wait.
func TestTwoProcesses(t *testing.T) {
	for _, waiting := range []Waiting{Ladder, Parked, Spinning, Polling} {
		t.Run("to the parent/"+waiting.String(), func(t *testing.T) {
			d, c := startChild(t, "source", Options{Waiting: waiting}, unix.SOCK_STREAM, "")
			if err := receiveChecked(t.Context(), d.Receiver, processFrames); err != nil {
				t.Fatal(err)
			}
			if err := d.TrySend(1); err != nil {
				t.Fatal(err)
			}
			if status := c.status(); status.ExitStatus() != 0 {
				t.Errorf("the child ended with %v", status)
			}
		})
		t.Run("to the child/"+waiting.String(), func(t *testing.T) {
			d, c := startChild(t, "sink", Options{Waiting: waiting}, unix.SOCK_STREAM, "")
			if err := sendChecked(t.Context(), d.Sender, processFrames); err != nil {
				t.Fatal(err)
			}
			if err := d.Receiver.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if status := c.status(); status.ExitStatus() != 0 {
				t.Errorf("the child ended with %v", status)
			}
		})
	}
}

// TestSenderKilled kills the sender directly before and directly after it
// publishes, which is before it wakes anybody. All that it published is
// received, in full, and then the wait ends.
func TestSenderKilled(t *testing.T) {
	for _, tc := range []struct {
		point string
		lost  int // publications that did not happen, of those that were begun
	}{
		{point: "lane-before-publish", lost: 1},
		{point: "lane-published", lost: 0},
	} {
		for _, at := range []int{1, 2, 1000} {
			point := fmt.Sprintf("%s:%d", tc.point, at)
			t.Run(point, func(t *testing.T) {
				d, c := startChild(t, "drip", Options{Waiting: Parked}, unix.SOCK_STREAM, point)
				received := 0
				var err error
				for err == nil {
					if err = d.Receiver.Wait(t.Context()); err != nil {
						break
					}
					for frame, kind, ok := d.Next(); ok; frame, kind, ok = d.Next() {
						if err := checkFrame(frame, kind, uint64(received)); err != nil {
							t.Fatal(err)
						}
						received++
					}
					d.Advance()
				}
				if !errors.Is(err, ErrPeerGone) {
					t.Fatalf("the wait ended with %v", err)
				}
				if status := c.status(); status.Signal() != syscall.SIGKILL {
					t.Fatalf("the child ended with %v", status)
				}
				if want := at - tc.lost; received != want {
					t.Errorf("received %d frames, want the %d published", received, want)
				}
			})
		}
	}
}

// TestReceiverKilled kills the receiver directly before and directly after it
// lets go of a frame, which is before it wakes anybody. The sender's wait ends,
// and the head is where the receiver left it.
func TestReceiverKilled(t *testing.T) {
	for _, tc := range []struct {
		point string
		kept  int // the frame that was handled and not let go of
	}{
		{point: "lane-before-advance", kept: 1},
		{point: "lane-advanced", kept: 0},
	} {
		for _, at := range []int{1, 2, 100} {
			point := fmt.Sprintf("%s:%d", tc.point, at)
			t.Run(point, func(t *testing.T) {
				d, c := startChild(t, "swallow", Options{Waiting: Parked}, unix.SOCK_STREAM, point)
				const frameBytes = 8 << 10
				var err error
				for err == nil {
					err = d.Send(t.Context(), 1, make([]byte, frameBytes-headerBytes))
				}
				if !errors.Is(err, ErrPeerGone) {
					t.Fatalf("the wait ended with %v", err)
				}
				if status := c.status(); status.Signal() != syscall.SIGKILL {
					t.Fatalf("the child ended with %v", status)
				}
				if err := d.readHead(); err != nil {
					t.Fatal(err)
				}
				if want := uint64(at-tc.kept) * frameBytes; d.Sender.head != want {
					t.Errorf("the head is %d, want %d", d.Sender.head, want)
				}
			})
		}
	}
}

// TestKilledWhileParked: a side that sleeps is woken by the other's death.
func TestKilledWhileParked(t *testing.T) {
	d, c := startChild(t, "swallow", Options{Waiting: Parked}, unix.SOCK_STREAM, "")
	if err := unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Receiver.Wait(t.Context()); !errors.Is(err, ErrPeerGone) {
		t.Errorf("the wait ended with %v", err)
	}
}

// TestReceiverCannotWrite: writing to a frame is fatal to the receiver, and
// changes nothing.
func TestReceiverCannotWrite(t *testing.T) {
	d, c := startChild(t, "writer", Options{}, unix.SOCK_STREAM, "")
	mustSend(t, d.Sender, 8)
	if status := c.status(); status.ExitStatus() == 0 {
		t.Error("the child wrote to the lane and lives")
	}
	if d.frames()[headerBytes] != 0 {
		t.Error("the child's write arrived")
	}
}

func (d *duplex) frames() []byte { return d.Sender.frames }

func TestEvent(t *testing.T) {
	e, err := NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		e.Signal()
	}
	if err := e.Wait(); err != nil {
		t.Fatal(err)
	}
	var count [8]byte
	if _, err := unix.Read(e.FD(), count[:]); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a wait left signals behind: %v", err)
	}
	ended := make(chan error)
	go func() { ended <- e.Wait() }()
	if err := errors.Join(e.Close(), e.Close()); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("the wait ended with %v", err)
	}
	e.Signal()
}

// TestOpenEvent refuses what is no eventfd, and closes it.
func TestOpenEvent(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fd, err := unix.FcntlInt(w.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenEvent(fd); !errors.Is(err, ErrPeer) {
		t.Errorf("a pipe: %v", err)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("the refused descriptor is still open")
	}
	made, err := NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	fd, err = unix.FcntlInt(uintptr(made.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := OpenEvent(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	opened.Signal()
	if err := made.Wait(); err != nil {
		t.Error(err)
	}
}
