package duplex

import (
	"errors"
	"runtime"
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

// kindsOnly is a handler that keeps the kinds of what comes, up to a number.
type kindsOnly struct {
	*recorder
	kinds []wire.Kind
	most  int
}

var errEnough = errors.New("enough")

func (k *kindsOnly) Message(m wire.Message, _ bool) error {
	if k.kinds = append(k.kinds, m.Kind()); len(k.kinds) == k.most {
		return errEnough
	}
	return nil
}

// TestBehindTheBacklog: a message that would find room in the lane comes behind
// a larger one that waits for it.
func TestBehindTheBacklog(t *testing.T) {
	a, b := meetIdle(t)
	large := &wire.Deliver{Flags: wire.FlagInline, Size: wire.MaxInline, Payload: make([]byte, wire.MaxInline)}
	waits := func() (waits, taken bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.draining, len(a.backlog) == 0
	}
	n := 0
	for full := false; !full; full, _ = waits() {
		if err := a.Send(large); err != nil {
			t.Fatal(err)
		}
		n++
	}
	for taken := false; !taken; _, taken = waits() { // by the goroutine that waits for room
		runtime.Gosched()
	}
	if a.TrySend(&wire.Release{}) == nil {
		t.Error("a message was sent before one that waits")
	}
	if err := a.Send(&wire.Finish{}); err != nil {
		t.Fatal(err)
	}
	k := &kindsOnly{recorder: newRecorder(), most: n + 1}
	if err := b.Run(k); !errors.Is(err, errEnough) {
		t.Errorf("the end is %v", err)
	}
	if k.kinds[n] != wire.KindFinish {
		t.Errorf("of %d messages, the last is %v", n+1, k.kinds[n])
	}
}
