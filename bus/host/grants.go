package host

import (
	"slices"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/pool"
)

// grants begins the requests that had to wait for a permit, in the order of the grants. Its goroutine
// first tries the messages that the client sent behind its submit, without waiting, and then begins the
// next request. So requests reach the first stages in the order in which they begin. A step that has to
// wait gets a goroutine of its own.
type grants struct {
	permits *pool.Pool

	mu     lockorder.Mutex[lockorder.Grants]
	cond   *sync.Cond
	queue  []*session // one entry for each permit that was granted and is not used yet
	closed bool
	done   chan struct{}
}

func newGrants(permits *pool.Pool) *grants {
	g := &grants{permits: permits, done: make(chan struct{})}
	g.cond = sync.NewCond(&g.mu)
	go g.run()
	return g
}

// grant adds a permit that a client was granted. After close it returns the permit at once.
func (g *grants) grant(s *session) {
	g.mu.Lock()
	closed := g.closed
	if !closed {
		g.queue = append(g.queue, s)
		g.cond.Signal()
	}
	g.mu.Unlock()
	if closed {
		g.permits.Give()
	}
}

// next waits for a grant; nil: grants is closed.
func (g *grants) next() *session {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.queue) == 0 && !g.closed {
		g.cond.Wait()
	}
	if len(g.queue) == 0 {
		return nil
	}
	s := g.queue[0]
	g.queue[0] = nil
	g.queue = g.queue[1:]
	return s
}

func (g *grants) run() {
	defer close(g.done)
	for s := g.next(); s != nil; s = g.next() {
		s.beginNext()
	}
}

// close ends the goroutine. No request of a client waits any more.
func (g *grants) close() {
	g.mu.Lock()
	g.closed = true
	g.cond.Broadcast()
	g.mu.Unlock()
	<-g.done
}

// submitQueue holds the requests of a client that wait for a permit, in the order of its messages. A
// grant is for the client, not for one request: the first request gets it. No function is called with
// the lock held.
type submitQueue struct {
	mu        lockorder.Mutex[lockorder.SubmitQueue]
	waiting   []*waitingSubmit
	beginning bool // a request was taken out by the grants, and its first steps are not tried yet
}

// waitingSubmit is a request that waits for a permit.
type waitingSubmit struct {
	src     *source
	opening bus.RequestOptions
	notify  bool // see wire.SubmitTell
	ticket  pool.Waiter
	timer   *time.Timer // of the deadline; nil: the request has none
}

// empty reports whether a request may begin without overtaking another request of the client.
func (l *submitQueue) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting) == 0 && !l.beginning
}

// push adds a request. At its deadline late is called.
func (l *submitQueue) push(w *waitingSubmit, late func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, w)
	if at := w.opening.Deadline; !at.IsZero() { // under the lock: late finds the request in the queue
		w.timer = time.AfterFunc(time.Until(at), late)
	}
}

// takeFirst removes the request that begins; nil: all requests were withdrawn.
func (l *submitQueue) takeFirst() *waitingSubmit {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return nil
	}
	w := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	l.beginning = true
	return w
}

// beginDone is called when the messages behind the submit have been tried.
func (l *submitQueue) beginDone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beginning = false
}

// remove removes the request of a source; nil: it is not in the queue, or it is beginning.
func (l *submitQueue) remove(src *source) *waitingSubmit {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.waiting, func(w *waitingSubmit) bool { return w.src == src })
	if i < 0 {
		return nil
	}
	w := l.waiting[i]
	l.waiting = slices.Delete(l.waiting, i, i+1)
	return w
}

// removeAll empties the queue, and returns its requests.
func (l *submitQueue) removeAll() []*waitingSubmit {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.waiting
	l.waiting = nil
	return all
}

// enqueueSubmit makes a request begin when the client gets a permit. It runs on the reader's goroutine,
// so that the tickets for permits are taken in the order of the client's messages.
func (s *session) enqueueSubmit(src *source, o bus.RequestOptions, tell, placed bool) {
	w := &waitingSubmit{src: src, opening: o, notify: tell}
	w.ticket = pool.Waiter{Client: s.node, Granted: func() { s.srv.grants.grant(s) }}
	src.mu.Lock()
	src.busy = true // later steps of the request wait
	src.mu.Unlock()
	s.working.Add(1) // until its first steps were tried
	s.submits.push(w, func() { src.withdraw(s.srv.services.NoPermit(bus.ErrDeadline)) })
	if !placed {
		placed = s.srv.services.Permits.Take(&w.ticket)
	}
	if placed {
		s.srv.grants.grant(s)
	}
	if s.srv.refusing.Load() { // may have been set before the request was in the queue
		src.withdraw(errRefusing)
	}
}

// beginNext begins the first request of the client's queue with the permit that the client was granted.
func (s *session) beginNext() {
	w := s.submits.takeFirst()
	if w == nil { // the request was withdrawn after its permit was granted
		s.srv.services.Permits.Give()
		return
	}
	defer s.working.Done()
	defer s.submits.beginDone()
	w.stopTimer()
	if s.beginRequest(w.src, w.opening, w.notify) {
		w.src.resume(noWait)
	} else {
		w.src.resume(skip)
	}
}

func (w *waitingSubmit) stopTimer() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// reject ends a request that was removed from the queue before it began. A permit that was granted
// meanwhile goes to the next request in the queue, or back to the pool.
func (w *waitingSubmit) reject(cause error) {
	s := w.src.sess
	defer s.working.Done()
	w.stopTimer()
	s.srv.services.Permits.Withdraw(&w.ticket)
	w.src.refuse(cause)
	w.src.resume(skip)
}

// rejectAll ends all requests in the queue.
func (s *session) rejectAll(cause error) {
	for _, w := range s.submits.removeAll() {
		w.reject(cause)
	}
}
