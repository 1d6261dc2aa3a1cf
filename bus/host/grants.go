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
	places *pool.Pool

	mu     lockorder.Mutex[lockorder.Grants]
	news   *sync.Cond
	queue  []*session // one entry for each place that was granted and is not used yet
	closed bool
	done   chan struct{}
}

func newGrants(places *pool.Pool) *grants {
	g := &grants{places: places, done: make(chan struct{})}
	g.news = sync.NewCond(&g.mu)
	go g.run()
	return g
}

// grant is told that a client has got a place. Behind close the place goes back at once.
func (g *grants) grant(s *session) {
	g.mu.Lock()
	closed := g.closed
	if !closed {
		g.queue = append(g.queue, s)
		g.news.Signal()
	}
	g.mu.Unlock()
	if closed {
		g.places.Give()
	}
}

// next waits for a grant; nil: there is none, and none comes.
func (g *grants) next() *session {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.queue) == 0 && !g.closed {
		g.news.Wait()
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
	g.news.Broadcast()
	g.mu.Unlock()
	<-g.done
}

// line is the requests of a client that wait for their place, in the order of its messages. A
// grant is for the client, and not for one of them: the first one begins. Nothing is called
// while the lock is held.
type line struct {
	mu        lockorder.Mutex[lockorder.Line]
	waiting   []*waiting
	beginning bool // one was taken out by the grants, and its first steps are not tried yet
}

// waiting is a request that waits for its place.
type waiting struct {
	src     *source
	opening bus.RequestOptions
	tell    bool // see wire.SubmitTell
	ticket  pool.Waiter
	timer   *time.Timer // of the deadline; nil: there is none
}

// empty reports whether a request may begin without overtaking another one of the client.
func (l *line) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting) == 0 && !l.beginning
}

// push adds a request, which late is called for at its deadline.
func (l *line) push(w *waiting, late func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, w)
	if at := w.opening.Deadline; !at.IsZero() { // under the lock: late finds the request in the line
		w.timer = time.AfterFunc(time.Until(at), late)
	}
}

// first takes out the request that begins; nil: all were withdrawn.
func (l *line) first() *waiting {
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

// begun says that what the client has sent for the first request was tried.
func (l *line) begun() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beginning = false
}

// leave takes out the request of a source; nil: it is not there, or it begins.
func (l *line) leave(src *source) *waiting {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.waiting, func(w *waiting) bool { return w.src == src })
	if i < 0 {
		return nil
	}
	w := l.waiting[i]
	l.waiting = slices.Delete(l.waiting, i, i+1)
	return w
}

// take takes out all.
func (l *line) take() []*waiting {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.waiting
	l.waiting = nil
	return all
}

// await has a request begin when the client gets a place. It is for the reader's goroutine, so that the
// tickets for places are taken in the order of the client's messages.
func (s *session) await(src *source, o bus.RequestOptions, tell, placed bool) {
	w := &waiting{src: src, opening: o, tell: tell}
	w.ticket = pool.Waiter{Client: s.node, Granted: func() { s.srv.grants.grant(s) }}
	src.mu.Lock()
	src.busy = true // what is asked for the request waits behind it
	src.mu.Unlock()
	s.working.Add(1) // until its first steps were tried
	s.line.push(w, func() { src.withdraw(s.srv.services.NoPermit(bus.ErrDeadline)) })
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
	w := s.line.first()
	if w == nil { // the request was withdrawn when its place had been granted
		s.srv.services.Permits.Give()
		return
	}
	defer s.working.Done()
	defer s.line.begun()
	w.stop()
	if s.begin(w.src, w.opening, w.tell) {
		w.src.goOn(waitNot)
	} else {
		w.src.goOn(skip)
	}
}

func (w *waiting) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// turnAway ends a request that has left the line before it began. A place that was granted meanwhile
// goes to the next of the line, or back.
func (w *waiting) turnAway(cause error) {
	s := w.src.sess
	defer s.working.Done()
	w.stop()
	s.srv.services.Permits.Withdraw(&w.ticket)
	w.src.refused(cause)
	w.src.goOn(skip)
}

// turnAwayAll ends all requests of the line.
func (s *session) turnAwayAll(cause error) {
	for _, w := range s.line.take() {
		w.turnAway(cause)
	}
}
