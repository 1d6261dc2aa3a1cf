package host

import (
	"slices"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/pool"
)

// grants begins the requests that had to wait for their place, in the order in which places are
// granted. Its goroutine waits for nothing else: it tries what a client has sent behind its submit
// before it begins the next request, so that requests come to the first stages in the order in which
// they begin. A step that has to wait gets a goroutine of its own.
type grants struct {
	permits *pool.Pool

	mu     lockorder.Mutex[lockorder.Grants]
	cond   *sync.Cond
	queue  []*session // one entry for each place that was granted and is not used yet
	closed bool
	done   chan struct{}
}

func newGrants(places *pool.Pool) *grants {
	g := &grants{permits: places, done: make(chan struct{})}
	g.cond = sync.NewCond(&g.mu)
	go g.run()
	return g
}

// grant is told that a client has got a place. Behind close the place goes back at once.
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

// next waits for a grant; nil: there is none, and none comes.
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

// close ends the goroutine, when no request of a client waits any more.
func (g *grants) close() {
	g.mu.Lock()
	g.closed = true
	g.cond.Broadcast()
	g.mu.Unlock()
	<-g.done
}

// submitQueue is the requests of a client that wait for their place, in the order of its messages. A
// grant is for the client, and not for one of them: the first one begins. Nothing is called
// while the lock is held.
type submitQueue struct {
	mu        lockorder.Mutex[lockorder.Line]
	waiting   []*waitingSubmit
	beginning bool // one was taken out by the grants, and its first steps are not tried yet
}

// waitingSubmit is a request that waits for its place.
type waitingSubmit struct {
	src     *source
	opening bus.RequestOptions
	notify  bool // see wire.SubmitTell
	ticket  pool.Waiter
	timer   *time.Timer // of the deadline; nil: there is none
}

// empty reports whether a request may begin without overtaking another one of the client.
func (l *submitQueue) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting) == 0 && !l.beginning
}

// push adds a request, which late is called for at its deadline.
func (l *submitQueue) push(w *waitingSubmit, late func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, w)
	if at := w.opening.Deadline; !at.IsZero() { // under the lock: late finds the request in the line
		w.timer = time.AfterFunc(time.Until(at), late)
	}
}

// takeFirst takes out the request that begins; nil: all were withdrawn.
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

// beginDone says that what the client has sent for the first request was tried.
func (l *submitQueue) beginDone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beginning = false
}

// remove takes out the request of a source; nil: it is not there, or it begins.
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

// removeAll takes out all.
func (l *submitQueue) removeAll() []*waitingSubmit {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.waiting
	l.waiting = nil
	return all
}

// enqueueSubmit has a request begin when the client gets a place. It is for the reader's goroutine, so that the
// tickets for places are taken in the order of the client's messages.
func (s *session) enqueueSubmit(src *source, o bus.RequestOptions, tell, placed bool) {
	w := &waitingSubmit{src: src, opening: o, notify: tell}
	w.ticket = pool.Waiter{Client: s.node, Granted: func() { s.srv.grants.grant(s) }}
	src.mu.Lock()
	src.busy = true // what is asked for the request waits behind it
	src.mu.Unlock()
	s.working.Add(1) // until its first steps were tried
	s.submits.push(w, func() { src.withdraw(s.srv.services.NoPermit(bus.ErrDeadline)) })
	if !placed {
		placed = s.srv.services.Permits.Take(&w.ticket)
	}
	if placed {
		s.srv.grants.grant(s)
	}
	if s.srv.refusing.Load() { // since before the request was in the line, perhaps
		src.withdraw(errRefusing)
	}
}

// beginNext begins the first request of the client's line at the place that the client has got.
func (s *session) beginNext() {
	w := s.submits.takeFirst()
	if w == nil { // the request was withdrawn when its place had been granted
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

// reject ends a request that has left the line before it began. A place that was granted meanwhile
// goes to the next of the line, or back.
func (w *waitingSubmit) reject(cause error) {
	s := w.src.sess
	defer s.working.Done()
	w.stopTimer()
	s.srv.services.Permits.Withdraw(&w.ticket)
	w.src.refuse(cause)
	w.src.resume(skip)
}

// rejectAll ends all requests of the line.
func (s *session) rejectAll(cause error) {
	for _, w := range s.submits.removeAll() {
		w.reject(cause)
	}
}
