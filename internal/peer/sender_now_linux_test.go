package peer

import (
	"errors"
	"sync"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestNow: a message that is to have been sent is sent before Now returns, or never.
func TestNow(t *testing.T) {
	buf := make([]byte, wire.MaxPacket)
	t.Run("idle", func(t *testing.T) {
		a, b := pair(t)
		s := newSender(t, a, SenderOptions{})
		if err := s.Now(&wire.Lent{Delivery: 1}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := tryReceive(b, buf); err != nil {
			t.Errorf("nothing has been sent: %v", err)
		}
		if err := s.Now(&wire.Serve{Stage: "\xff"}); !errors.Is(err, wire.CodeInvalid) {
			t.Errorf("a message that is none: %v, want CodeInvalid", err)
		}
	})
	t.Run("others send", func(t *testing.T) {
		const n = 400 // of each: there is room for all
		a, _ := laned(t)
		s := newSender(t, a, SenderOptions{})
		var all sync.WaitGroup
		for _, send := range []func(wire.Message) error{s.Now, func(m wire.Message) error { return s.Queue(m) }} {
			all.Go(func() {
				for range n {
					if err := send(&wire.Lent{Delivery: 1}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	})
	t.Run("hung up", func(t *testing.T) {
		a, b := laned(t)
		s := newSender(t, a, SenderOptions{})
		b.HangUp()
		if err := s.Now(&wire.Lent{Delivery: 1}); !errors.Is(err, ErrGone) {
			t.Errorf("to a peer that may not read its lane any more: %v, want ErrGone", err)
		}
	})
	t.Run("others wait", func(t *testing.T) {
		a, b := laned(t)
		s := newSender(t, a, SenderOptions{})
		queued := 0
		for ; s.Blocked() == 0; queued++ {
			if err := s.Queue(&wire.Finish{Delivery: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Now(&wire.Lent{Delivery: 1}); !errors.Is(err, ErrBacklog) {
			t.Errorf("a message behind others: %v, want ErrBacklog", err)
		}
		if err := s.Queue(&wire.Finish{Delivery: 7}); err != nil {
			t.Fatal(err)
		}
		in := NewReceiver(b)
		for range queued + 1 {
			h, _, fds, err := in.Next()
			process.CloseAll(fds)
			if err != nil || h.Kind != wire.KindFinish {
				t.Fatalf("received %v, %v; want what was queued alone", h.Kind, err)
			}
		}
	})
	t.Run("no room", func(t *testing.T) {
		a, _ := pair(t)
		s := newSender(t, a, SenderOptions{})
		for sent := true; sent; {
			var err error
			if sent, err = a.trySend(make([]byte, wire.MaxPacket), nil); err != nil {
				t.Fatal(err)
			}
		}
		for sent := true; sent; { // nor for a small one
			var err error
			if sent, err = a.trySend([]byte("small"), nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Now(&wire.Lent{Delivery: 1}); !errors.Is(err, ErrBacklog) || backlog(s) != 0 {
			t.Errorf("a message without room: %v, and %d bytes wait; want ErrBacklog, and none", err, backlog(s))
		}
	})
	t.Run("closed", func(t *testing.T) {
		a, _ := pair(t)
		s := newSender(t, a, SenderOptions{})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Now(&wire.Lent{Delivery: 1}); !errors.Is(err, ErrClosed) {
			t.Errorf("Now after Close: %v, want ErrClosed", err)
		}
	})
}
