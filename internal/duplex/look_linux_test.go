package duplex

import (
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// picky is a handler that would have to wait for some messages, and fails on others.
type picky struct {
	handled []uint32
	waited  []uint32 // of those, where it was allowed to wait
	wait    uint32   // the delivery that it would have to wait for
	fail    uint32   // ... and that it fails on
	told    chan uint32
}

var errPicky = errors.New("not this one")

func (p *picky) Segment(uint32, *shmstore.Segment) error { return nil }
func (p *picky) Forget(uint32)                           {}

func (p *picky) Message(m wire.Message, mayWait bool) error {
	id := m.(*wire.Finish).Delivery
	if id == p.wait && !mayWait {
		return ErrWait
	}
	if id == p.fail {
		return errPicky
	}
	p.handled = append(p.handled, id)
	if mayWait {
		p.waited = append(p.waited, id)
	}
	p.told <- id
	return nil
}

// sendAll sends finishes with these numbers.
func sendAll(t *testing.T, d *Duplex, ids ...uint32) {
	t.Helper()
	for _, id := range ids {
		if err := d.Send(&wire.Finish{Delivery: id}); err != nil {
			t.Fatal(err)
		}
	}
}

// never is how a goroutine looks that has nothing better to do.
func never() bool { return false }

// always is how it says that nothing depends on it.
func always() bool { return true }

// lookOn has n goroutines look again and again, until stop, which waits for them.
func lookOn(d *Duplex, n int, enough func() bool) (stop func()) {
	over := make(chan struct{})
	var looking sync.WaitGroup
	for range n {
		looking.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					d.Look(enough, always)
					runtime.Gosched() // another may hold the lane
				}
			}
		})
	}
	return func() {
		close(over)
		looking.Wait()
	}
}

// TestLook: a goroutine that looks handles what comes, in order, with Run beside it, and
// leaves to Run what has to wait and what is behind that.
func TestLook(t *testing.T) {
	a, b := meetIdle(t)
	p := &picky{wait: 3, told: make(chan uint32, 8)}
	b.Look(never, always) // Run has not begun
	b.handler = p         // as it has when Run is parked
	sendAll(t, a, 1, 2, 3, 4)
	if b.Look(never, never) || len(p.handled) != 0 {
		t.Errorf("%v handled by one that has no time", p.handled)
	}
	b.Look(never, always)
	if len(p.handled) != 2 || b.waits.body == nil {
		t.Fatalf("%v handled by who looks, want 1 and 2, and 3 kept for Run", p.handled)
	}
	b.Look(never, always)
	if len(p.handled) != 2 {
		t.Errorf("%v handled by who looks, past one that has to wait", p.handled)
	}
	ended := make(chan error, 1)
	go func() { ended <- b.Run(p) }()
	for want := range uint32(4) {
		if got := <-p.told; got != want+1 {
			t.Errorf("message %d handled as number %d", got, want+1)
		}
	}
	a.Close()
	if err := <-ended; !errors.Is(err, lane.ErrPeerGone) {
		t.Errorf("the end is %v, want %v", err, lane.ErrPeerGone)
	}
	if len(p.waited) != 2 || p.waited[0] != 3 {
		t.Errorf("%v were allowed to wait, want 3 and 4", p.waited)
	}
	b.Look(never, always) // Run is over
}

// TestLookFails: an error of the handler ends Run, also where Look received the message.
func TestLookFails(t *testing.T) {
	a, b := meetIdle(t)
	p := &picky{fail: 7, told: make(chan uint32, 8)}
	ended := make(chan error, 1)
	go func() { ended <- b.Run(p) }()
	sendAll(t, a, 1)
	<-p.told
	stop := lookOn(b, 1, never)
	sendAll(t, a, 7, 8)
	if err := <-ended; !errors.Is(err, errPicky) {
		t.Errorf("the end is %v, want %v", err, errPicky)
	}
	stop()
	if len(p.handled) != 1 {
		t.Errorf("%v handled, behind one that failed", p.handled)
	}
}

// TestLookersBesideRun: each message is handled once, in order, by whichever goroutine
// finds it, while others look and the peer parks in between.
func TestLookersBesideRun(t *testing.T) {
	a, b := meetIdle(t)
	const n = 2_000
	p := &picky{told: make(chan uint32, 1)}
	ended := make(chan error, 1)
	go func() { ended <- b.Run(p) }()
	stop := lookOn(b, 3, func() bool { return len(p.told) > 0 })
	for i := range uint32(n) {
		sendAll(t, a, i+1)
		if got := <-p.told; got != i+1 { // a lost wake-up hangs here
			t.Fatalf("message %d came as number %d", got, i+1)
		}
	}
	a.Close()
	if err := <-ended; !errors.Is(err, lane.ErrPeerGone) {
		t.Errorf("the end is %v, want %v", err, lane.ErrPeerGone)
	}
	stop()
	if len(p.handled) != n {
		t.Errorf("%d of %d messages handled", len(p.handled), n)
	}
}
