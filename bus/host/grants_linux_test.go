package host

import (
	"sync"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// fillPermits is a host all of whose places are taken, and a session with requests in its line.
func fillPermits(t *testing.T, submits int) (a *testHost, sess *session, first, inLine []*bus.Request) {
	t.Helper()
	a = openTestHost(t, 4, func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) })
	for range testHostRequests {
		first = append(first, testbus.StreamOf(t, a.bus))
	}
	sess = a.server.live()[0]
	for range submits {
		r, err := a.node.Submit(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		inLine = append(inLine, r)
	}
	testbus.Await(t, func() bool { return sess.inLine() == submits })
	return a, sess, first, inLine
}

// inLine is how many requests wait for their places.
func (s *session) inLine() int {
	s.submits.mu.Lock()
	defer s.submits.mu.Unlock()
	return len(s.submits.waiting)
}

// free reports whether all places are.
func (a *testHost) free() bool { return a.server.services.Permits.Free() == testHostRequests }

// TestWithdrawDuringBegin: a close or an abort that comes while its request begins is not lost.
func TestWithdrawDuringBegin(t *testing.T) {
	for name, withdraw := range map[string]func(*source){
		"close": func(src *source) { src.close(nil) },
		"abort": func(src *source) { src.endRequest(bus.ErrAborted) },
	} {
		t.Run(name, func(t *testing.T) {
			a, sess, first, _ := fillPermits(t, 1)
			w := sess.submits.takeFirst() // as beginNext takes it
			withdraw(w.src)
			first[0].Close()
			testbus.Await(t, func() bool { return a.server.services.Permits.Free() == 1 }) // given back: there is no other in the line
			if err := a.server.backend.AcquirePermit(t.Context(), bus.RequestOptions{Now: true}); err != nil {
				t.Fatal(err)
			}
			if sess.beginRequest(w.src, w.opening, w.notify) {
				w.src.resume(noWait)
			}
			sess.submits.beginDone()
			sess.working.Done()
			for _, r := range first {
				r.Close()
			}
			testbus.Await(t, a.free)
		})
	}
}

// TestWithdrawAfterGrantFreesPermit: a request that is withdrawn when its place has been granted gives the place
// to the next one of the line, or back.
func TestWithdrawAfterGrantFreesPermit(t *testing.T) {
	for _, submits := range []int{1, 3} {
		a, sess, first, inLine := fillPermits(t, submits)
		sess.submits.mu.Lock()
		src := sess.submits.waiting[0].src
		sess.submits.mu.Unlock()
		unlock := holdLock(&a.server.grants.mu) // the place is granted, and the grants do not know yet
		var closes sync.WaitGroup
		closes.Go(first[0].Close)
		testbus.Await(t, func() bool { return a.bus.Stats().Live == testHostRequests-1 })
		src.close(nil)
		unlock()
		closes.Wait()
		if submits > 1 {
			testbus.Await(t, func() bool { return a.bus.Stats().Live == testHostRequests }) // the next one has begun
		}
		for _, r := range append(first, inLine...) {
			r.Close()
		}
		testbus.Await(t, a.free)
	}
}

// TestRequestsBeginInSubmitOrder: a request does not begin, also where there is a place, while one that the
// client has submitted before is about to.
func TestRequestsBeginInSubmitOrder(t *testing.T) {
	a, sess, first, _ := fillPermits(t, 1)
	w := sess.submits.takeFirst() // as beginNext takes it
	first[0].Close()
	testbus.Await(t, func() bool { return a.server.services.Permits.Free() == 1 })
	unlock := holdLock(&a.server.grants.mu)
	r, err := a.node.Submit(t.Context(), "x")
	if err != nil {
		t.Error(err)
	}
	testbus.Await(t, func() bool { return sess.inLine() == 1 })
	unlock()
	w.reject(bus.ErrClosed)
	sess.submits.beginDone()
	testbus.Await(t, func() bool { return a.bus.Stats().Live == testHostRequests })
	r.Close()
}

// holdLock has a goroutine of its own hold a lock until it is let go.
func holdLock(mu sync.Locker) (unlock func()) {
	locked, enough, unlocked := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		mu.Lock()
		close(locked)
		<-enough
		mu.Unlock()
		close(unlocked)
	}()
	<-locked
	return func() {
		close(enough)
		<-unlocked
	}
}
