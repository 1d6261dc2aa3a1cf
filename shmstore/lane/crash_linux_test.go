package lane

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTwoProcesses sends checked frames from one process to another, in each direction
// and with each Waiting.
func TestTwoProcesses(t *testing.T) {
	for _, tc := range waitings {
		t.Run("to the parent/"+tc.name, func(t *testing.T) {
			d, c := startChild(t, "source", tc.name, unix.SOCK_STREAM, "")
			if err := receiveChecked(d.Receiver, processFrames, d.sleep); err != nil {
				t.Fatal(err)
			}
			if err := d.TrySend(1, nil); err != nil {
				t.Fatal(err)
			}
			if status := c.status(); status.ExitStatus() != 0 {
				t.Errorf("the child ended with %v", status)
			}
		})
		t.Run("to the child/"+tc.name, func(t *testing.T) {
			d, c := startChild(t, "sink", tc.name, unix.SOCK_STREAM, "")
			if err := sendChecked(d.Sender, processFrames, c.dead); err != nil {
				t.Fatal(err)
			}
			if err := d.await(); err != nil {
				t.Fatal(err)
			}
			if status := c.status(); status.ExitStatus() != 0 {
				t.Errorf("the child ended with %v", status)
			}
		})
	}
}

// TestSenderKilled kills the sender directly before and directly after it
// publishes, which is before it wakes the receiver. The receiver gets all published frames,
// in full, and then the end of the socket.
func TestSenderKilled(t *testing.T) {
	for _, tc := range []struct {
		point string
		lost  int // of the sends that began, those that published nothing
	}{
		{point: "lane-before-publish", lost: 1},
		{point: "lane-published", lost: 0},
	} {
		for _, at := range []int{1, 2, 1000} {
			point := fmt.Sprintf("%s:%d", tc.point, at)
			t.Run(point, func(t *testing.T) {
				d, c := startChild(t, "drip", "parked", unix.SOCK_STREAM, point)
				received := 0
				var err error
				for err == nil {
					if err = d.await(); err != nil {
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
				if !errors.Is(err, io.EOF) {
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
// frees a frame. The head is as the receiver stored it last.
func TestReceiverKilled(t *testing.T) {
	for _, tc := range []struct {
		point string
		kept  int // the frame that was handled and not freed
	}{
		{point: "lane-before-advance", kept: 1},
		{point: "lane-advanced", kept: 0},
	} {
		for _, at := range []int{1, 2, 100} {
			point := fmt.Sprintf("%s:%d", tc.point, at)
			t.Run(point, func(t *testing.T) {
				d, c := startChild(t, "swallow", "parked", unix.SOCK_STREAM, point)
				const frameBytes = 8 << 10
				var err error
				for err == nil {
					err = send(d.Sender, 1, make([]byte, frameBytes-headerBytes), c.dead)
				}
				if !errors.Is(err, errGone) {
					t.Fatalf("the sending ended with %v", err)
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

// TestReceiverCannotWrite: writing to a frame kills the receiver, and
// changes nothing.
func TestReceiverCannotWrite(t *testing.T) {
	d, c := startChild(t, "writer", "ladder", unix.SOCK_STREAM, "")
	mustSend(t, d.Sender, 8)
	if status := c.status(); status.ExitStatus() == 0 {
		t.Error("the child wrote to the lane and lives")
	}
	if d.Sender.frames[headerBytes] != 0 {
		t.Error("the child's write arrived")
	}
}
