package duplex

import (
	"errors"
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// meetIdle makes both ends of a duplex, of which neither reads yet.
func meetIdle(t *testing.T) (a, b *Duplex) {
	t.Helper()
	ca, cb, err := peer.Pair()
	if err != nil {
		t.Fatal(err)
	}
	met := make(chan *Duplex)
	go func() {
		a, err := Meet(ca, 5, 0, Options{})
		if err != nil {
			t.Error(err)
		}
		met <- a
	}()
	b, err = Meet(cb, 5, 1, Options{})
	a = <-met
	if err != nil || a == nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	t.Cleanup(b.Close)
	return a, b
}

// TestGoneBeforeItIsRead: what a peer sent is handled also when the peer is known
// to be gone before the first of it is looked at.
func TestGoneBeforeItIsRead(t *testing.T) {
	a, b := meetIdle(t)
	const n = 10
	for i := range uint32(n) {
		if err := a.Send(&wire.Finish{Delivery: i}); err != nil {
			t.Fatal(err)
		}
	}
	a.Close()
	b.PeerGone(errors.New("it died"))
	rec := newRecorder()
	if err := b.Run(rec); !errors.Is(err, lane.ErrPeerGone) {
		t.Errorf("the end is %v, want %v", err, lane.ErrPeerGone)
	}
	if len(rec.finishes) != n {
		t.Errorf("%d messages of %d were handled", len(rec.finishes), n)
	}
}

// follower has one more message sent for each that comes, and checks their order.
type follower struct {
	*recorder
	from       *Duplex
	next, sent uint32
	most       uint32
}

var errEnough = errors.New("enough")

func (f *follower) Message(m wire.Message) error {
	if got := m.(*wire.Finish).Delivery; got != f.next {
		return fmt.Errorf("message %d came as number %d", got, f.next)
	}
	if f.next++; f.next == f.most {
		return errEnough
	}
	if f.sent < f.most {
		f.sent++
		return f.from.Send(&wire.Finish{Delivery: f.sent - 1})
	}
	return nil
}

// TestBehindTheBacklog: what is sent while a backlog makes its way into the lane
// comes behind it.
func TestBehindTheBacklog(t *testing.T) {
	a, b := meetIdle(t)
	f := &follower{recorder: newRecorder(), from: a}
	const backlog = 30_000 // several times what the lane holds
	for a.Backlog() < backlog {
		if err := a.Send(&wire.Finish{Delivery: f.sent}); err != nil {
			t.Fatal(err)
		}
		f.sent++
	}
	if a.TrySend(&wire.Finish{}) == nil {
		t.Error("a message was sent before those that wait")
	}
	f.most = 2 * f.sent
	if err := b.Run(f); !errors.Is(err, errEnough) {
		t.Errorf("the end is %v", err)
	}
}
