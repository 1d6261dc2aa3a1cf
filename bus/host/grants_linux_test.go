package host

import (
	"sync"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// fillPermits returns a host without a free permit, and a session with requests in its queue.
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

// inLine returns how many requests wait for permits.
func (s *session) inLine() int {
	s.submits.mu.Lock()
	defer s.submits.mu.Unlock()
	return len(s.submits.waiting)
}

// free reports whether all permits are free.
func (a *testHost) free() bool { return a.server.services.Permits.Free() == testHostRequests }

// TestWithdrawDuringBegin: a close or an abort of a request that is just beginning is not lost.
func TestWithdrawDuringBegin(t *testing.T) {
	for name, withdraw := range map[string]func(*source){
		"close": func(src *source) { src.close(nil) },
		"abort": func(src *source) { src.endRequest(bus.ErrAborted) },
	} {
		t.Run(name, func(t *testing.T) {
			a, sess, first, _ := fillPermits(t, 1)
			w := sess.submits.takeFirst() // as beginNext does
			withdraw(w.src)
			first[0].Close()
			testbus.Await(t, func() bool { return a.server.services.Permits.Free() == 1 }) // given back: the queue holds no other request
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

// TestWithdrawAfterGrantFreesPermit: a request that is withdrawn after its permit was granted gives the
// permit to the next request in the queue, or back.
func TestWithdrawAfterGrantFreesPermit(t *testing.T) {
	for _, submits := range []int{1, 3} {
		a, sess, first, inLine := fillPermits(t, submits)
		sess.submits.mu.Lock()
		src := sess.submits.waiting[0].src
		sess.submits.mu.Unlock()
		unlock := holdLock(&a.server.grants.mu) // the permit is granted, and the grants do not know it yet
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

// TestRequestsBeginInSubmitOrder: a request does not begin while an earlier request of the client is
// about to begin, even if a permit is free.
func TestRequestsBeginInSubmitOrder(t *testing.T) {
	a, sess, first, _ := fillPermits(t, 1)
	w := sess.submits.takeFirst() // as beginNext does
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

// holdLock locks mu on another goroutine until the returned function is called.
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
