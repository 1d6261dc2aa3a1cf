package peer

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

func TestSenderRefuses(t *testing.T) {
	a, b := pair(t)
	s := newSender(t, a, SenderOptions{})
	if err := s.Queue(&wire.Serve{Stage: "\xff"}); !errors.Is(err, wire.CodeInvalid) {
		t.Errorf("Queue of an invalid message: %v, want CodeInvalid", err)
	}
	// A refusal of the kernel is the caller's error: no other message is lost.
	if err := s.Queue(&wire.Segment{}, 1<<30); !errors.Is(err, unix.EBADF) {
		t.Errorf("Queue of an invalid descriptor: %v, want EBADF", err)
	}
	if err := errors.Join(s.Err(), s.Queue(&wire.Bye{})); err != nil || backlog(s) != 0 {
		t.Errorf("the next message: %v, Backlog %d", err, backlog(s))
	}
	if n, _, err := tryReceive(b, make([]byte, 100)); err != nil || n != wire.HeaderSize {
		t.Errorf("received %d bytes, %v; want the next message alone", n, err)
	}
	blocked(t, s)
	before := backlog(s)
	for name, err := range map[string]error{
		"text":       s.Queue(&wire.Serve{Stage: "\xff"}),
		"descriptor": s.Queue(&wire.Segment{}),
	} {
		if !errors.Is(err, wire.CodeInvalid) {
			t.Errorf("Queue of a message with a wrong %s: %v, want CodeInvalid", name, err)
		}
	}
	if backlog(s) != before {
		t.Errorf("Backlog %d, want %d as before", backlog(s), before)
	}
	b.Close()
	if err := s.Close(); !errors.Is(err, ErrGone) {
		t.Errorf("Close: %v, want ErrGone", err)
	}
}

func TestSenderEnds(t *testing.T) {
	t.Run("closed", func(t *testing.T) {
		a, _ := pair(t)
		s := newSender(t, a, SenderOptions{})
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := s.Queue(&wire.Bye{}); !errors.Is(err, ErrClosed) {
			t.Errorf("Queue after Close: %v, want ErrClosed", err)
		}
		if err := a.Send([]byte("x"), nil); err != nil {
			t.Errorf("the connection after Close: %v", err)
		}
	})
	t.Run("the peer closes", func(t *testing.T) {
		a, b := pair(t)
		s := newSender(t, a, SenderOptions{})
		b.Close()
		for range 2 {
			if err := s.Queue(&wire.Bye{}); !errors.Is(err, ErrGone) {
				t.Errorf("Queue: %v, want ErrGone", err)
			}
		}
		if err := s.Close(); !errors.Is(err, ErrGone) {
			t.Errorf("Close: %v, want ErrGone", err)
		}
	})
	t.Run("the peer does not read", func(t *testing.T) {
		a, _ := pair(t)
		s := newSender(t, a, SenderOptions{FlushTimeout: time.Millisecond})
		blocked(t, s)
		for range 2 {
			if err := s.Close(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Close: %v, want os.ErrDeadlineExceeded", err)
			}
		}
		if backlog(s) != 0 {
			t.Errorf("Backlog %d after Close", backlog(s))
		}
	})
	t.Run("a message is lost", func(t *testing.T) {
		a, b := pair(t)
		s := newSender(t, a, SenderOptions{})
		if err := b.Send([]byte("before"), nil); err != nil {
			t.Fatal(err)
		}
		queued := blocked(t, s)
		if err := a.SetWriteDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, wire.MaxPacket)
		if n, _, err := a.Receive(buf); err != nil || string(buf[:n]) != "before" {
			t.Errorf("this end receives %q, %v", buf[:n], err)
		}
		if n, _, err := a.Receive(buf); err != io.EOF {
			t.Errorf("this end receives %d bytes, %v; want its end", n, err)
		}
		got := uint32(0)
		readAll(t, b, func(wire.Header, []byte, []int) { got++ })
		if got == 0 || got >= queued {
			t.Errorf("the other end received %d of %d messages", got, queued)
		}
		for _, err := range []error{s.Queue(&wire.Bye{}), s.Err(), s.Close()} {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%v, want the cause of the first loss", err)
			}
		}
	})
	t.Run("given up", func(t *testing.T) {
		a, b := pair(t)
		s := newSender(t, a, SenderOptions{})
		if err := s.Err(); err != nil {
			t.Errorf("Err: %v", err)
		}
		blocked(t, s)
		s.Fail(ErrBacklog)
		readAll(t, a, func(h wire.Header, _ []byte, _ []int) { t.Errorf("received %v", h.Kind) })
		readAll(t, b, func(wire.Header, []byte, []int) {})
		s.Fail(io.EOF)
		for _, err := range []error{s.Queue(&wire.Bye{}), s.Err(), s.Close()} {
			if !errors.Is(err, ErrBacklog) {
				t.Errorf("%v, want the first error", err)
			}
		}
	})
	t.Run("options", func(t *testing.T) {
		a, _ := pair(t)
		for _, opts := range []SenderOptions{{BacklogBytes: 100}, {FlushTimeout: -1}} {
			if _, err := NewSender(a, opts); err == nil {
				t.Errorf("NewSender with %+v: no error", opts)
			}
		}
	})
}
