package peer

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// delayedSender is a Sender whose delay does not end, and its peer.
func delayedSender(t *testing.T) (*Sender, *Conn) {
	a, b := pair(t)
	s := newSender(t, a, SenderOptions{})
	s.delay = time.Hour
	return s, b
}

func queueLater(t *testing.T, s *Sender, from, to uint32) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := s.QueueLater(&wire.Release{Delivery: i}); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
}

// wantPacket receives a packet, and checks its messages.
func wantPacket(t *testing.T, c *Conn, from, to uint32) {
	t.Helper()
	r := NewReceiver(c)
	for i := from; i < to; i++ {
		_, body, _, err := r.Next()
		var m wire.Release
		if err == nil {
			err = wire.Decode(body, &m)
		}
		if err != nil || m.Delivery != i {
			t.Fatalf("received %+v, %v; want delivery %d", m, err, i)
		}
	}
	wantSilence(t, c)
}

func wantSilence(t *testing.T, c *Conn) {
	t.Helper()
	if n, _, err := tryReceive(c, make([]byte, 100)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("an unexpected packet of %d bytes, %v", n, err)
	}
}

// TestQueueLater: delayed messages are sent before the next message, in its packet.
func TestQueueLater(t *testing.T) {
	s, peer := delayedSender(t)
	for range 3 {
		queueLater(t, s, 0, 5)
		wantSilence(t, peer)
		if backlog(s) == 0 || s.Blocked() != 0 {
			t.Errorf("Backlog %d, Blocked %v", backlog(s), s.Blocked())
		}
		if err := s.Queue(&wire.Release{Delivery: 5}); err != nil {
			t.Fatal(err)
		}
		wantPacket(t, peer, 0, 6)
		if backlog(s) != 0 {
			t.Errorf("Backlog %d when all messages are sent", backlog(s))
		}
	}
}

// TestQueueLaterSends: delayed messages are sent after the delay, when they fill a packet, and at
// Close.
func TestQueueLaterSends(t *testing.T) {
	t.Run("in time", func(t *testing.T) {
		s, peer := delayedSender(t)
		s.delay = QueueLaterDelay
		for range 3 {
			queueLater(t, s, 0, 1)
			wantPacket(t, peer, 0, 1)
		}
	})
	t.Run("a packet", func(t *testing.T) {
		s, peer := delayedSender(t)
		full := uint32(wire.MaxPacket / messageSizeWith(t, &wire.Release{}, 0))
		queueLater(t, s, 0, full)
		wantSilence(t, peer)
		queueLater(t, s, full, full+1) // which begins another
		wantPacket(t, peer, 0, full+1)
	})
	t.Run("at the end", func(t *testing.T) {
		s, peer := delayedSender(t)
		queueLater(t, s, 0, 3)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wantPacket(t, peer, 0, 3)
		if err := s.QueueLater(&wire.Release{}); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestQueueLaterDescriptor: a descriptor is sent after delayed messages, without a duplicate.
func TestQueueLaterDescriptor(t *testing.T) {
	s, peer := delayedSender(t)
	queueLater(t, s, 0, 2)
	s.descriptors = maxBacklogDescriptors // none can wait
	err := s.Queue(&wire.Segment{Segment: 1}, int(os.Stdin.Fd()))
	s.descriptors = 0
	if err != nil {
		t.Fatal(err)
	}
	r := NewReceiver(peer)
	for _, want := range []int{0, 0, 1} {
		_, _, fds, err := r.Next()
		if err != nil || len(fds) != want {
			t.Errorf("%d descriptors, %v; want %d", len(fds), err, want)
		}
		process.CloseAll(fds)
	}
}

// TestQueueLaterOrder: delayed and urgent messages of several goroutines come in the order
// of each goroutine, and none is lost.
func TestQueueLaterOrder(t *testing.T) {
	queueFromSeveral(t, func(s *Sender, producer uint32, m wire.Message) error {
		if m := m.(*wire.Finish); m.Delivery%(producer+2) == 0 {
			return s.Queue(m)
		}
		return s.QueueLater(m)
	})
}
