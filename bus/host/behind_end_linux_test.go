package host

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestPassedOnBehindTheEnd: a process is given up, and lives. What it has passed on before it could know is kept
// for those that read it, and nothing else is done of what it has sent.
func TestPassedOnBehindTheEnd(t *testing.T) {
	s, number := holder(t)
	said, err := peer.NewSender(s.client, peer.SenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []wire.Message{&wire.Release{Delivery: number}, &wire.Lent{Delivery: number}} {
		if err := said.Queue(m); err != nil {
			t.Fatal(err)
		}
	}
	s.session.fail(errStuck)
	if err := s.read(peer.NewReceiver(s.conn)); !errors.Is(err, errStuck) {
		t.Errorf("the session ends with %v, want errStuck", err)
	}
	if r := s.account.Close(true, true); len(r.Lent) != 1 || len(r.Unfinished) != 1 {
		t.Errorf("%d payloads were passed on and %d deliveries are unfinished, want 1 and 1", len(r.Lent), len(r.Unfinished))
	}
}

// TestBoundBehindTheEnd: a process that is given up, and goes on writing, is read for so many messages, the last of
// which counts as well. What it passes on behind that is not kept.
func TestBoundBehindTheEnd(t *testing.T) {
	const most = 1 << 17
	for name, tc := range map[string]struct {
		before int // messages before the one that passes a payload on
		lent   int
	}{
		"the last":            {before: most - 1, lent: 1},
		"one behind the last": {before: most, lent: 0},
	} {
		t.Run(name, func(t *testing.T) {
			s, number := holder(t)
			s.cancel(errStuck)
			ended := make(chan error, 1)
			go func() {
				ended <- s.read(peer.NewReceiver(s.conn))
				_ = s.conn.Close() // so that the process, which writes on, is not waited for
			}()
			var packet []byte
			say := func(m wire.Message) {
				one, err := wire.Append(nil, m, 0)
				if err != nil {
					t.Fatal(err)
				}
				if packet = append(packet, one...); len(packet)+len(one) > wire.MaxPacket {
					_ = s.client.Send(packet, nil) // the host may be done with the process
					packet = packet[:0]
				}
			}
			for range tc.before {
				say(&wire.Release{Delivery: 1 << 31})
			}
			say(&wire.Lent{Delivery: number})
			_ = s.client.Send(packet, nil)
			s.client.HangUp()
			if err := <-ended; !errors.Is(err, errStuck) {
				t.Errorf("the session ends with %v, want errStuck", err)
			}
			if r := s.account.Close(true, true); len(r.Lent) != tc.lent {
				t.Errorf("%d payloads were passed on, want %d", len(r.Lent), tc.lent)
			}
		})
	}
}

// holder is a session whose process has a delivery, with its number.
func holder(t *testing.T) (s *acquainted, number uint32) {
	t.Helper()
	srv, err := Listen(echoBus(t), filepath.Join(t.TempDir(), "host.sock"), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Close(t.Context()) })
	s = newAcquainted(t, srv, 1)
	err = s.account.Hold(&ledger.Hold{Delivery: passedOn{}}, ledger.Location{}, func(n, _ uint32) error { number = n; return nil })
	if err != nil {
		t.Fatal(err)
	}
	return s, number
}

// passedOn is a delivery to a process.
type passedOn struct{}

func (passedOn) Hold() ledger.Held { return &lentOut{} }

// TestNothingBehindALostStep: a session ends while a step waits. None that comes behind it is done, however late
// it comes: the emissions of a source are one stream.
func TestNothingBehindALostStep(t *testing.T) {
	srv, err := Listen(echoBus(t), filepath.Join(t.TempDir(), "host.sock"), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Close(t.Context()) })
	src := &source{sess: newAcquainted(t, srv, 1).session}
	lost := stepFunc(func(pace) error { return bus.ErrCanceled })
	if err := src.do(lost); err != nil {
		t.Fatal(err)
	}
	src.sess.working.Wait()
	done := wait
	if err := src.do(stepFunc(func(how pace) error { done = how; return nil })); err != nil {
		t.Fatal(err)
	}
	if done != waive {
		t.Error("a step was done behind one that was lost")
	}
}
