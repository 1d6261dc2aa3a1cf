package pool

import (
	"container/list"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// Pool hands out a fixed number of places, first come, first served. It has none at first.
type Pool struct {
	mu       lockorder.Mutex[lockorder.Pool]
	free     int
	lines    map[uint32]*line // by client: those in which waiters stand
	rotation list.List        // of the same lines: the one whose turn it is first

	waiting int    // waiters in all lines
	granted uint64 // places that waiters have got so far
}

// line is the waiters of one client, the oldest first.
type line struct {
	client  uint32
	waiters list.List
	element *list.Element // among the lines
}

// Waiter is a place in a line of a pool.
type Waiter struct {
	// Client says in which line the waiter stands.
	Client uint32
	// Granted is called once, outside the pool's lock, on the goroutine that
	// gave the place back.
	Granted func()

	element *list.Element // in the line; nil: it does not wait
}

// TryTake takes a place if one is free, which none is while others wait.
func (p *Pool) TryTake() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take()
}

// Take takes a place or, when there is none, has w stand in line, which is granted one
// later unless it is withdrawn.
func (p *Pool) Take(w *Waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	ok := p.take()
	if !ok {
		w.element = p.line(w.Client).waiters.PushBack(w)
		p.waiting++
	}
	return ok
}

func (p *Pool) take() bool {
	if p.free == 0 {
		return false
	}
	p.free--
	return true
}

// line finds the line of a client. A new one has its turn behind all others.
func (p *Pool) line(client uint32) *line {
	l := p.lines[client]
	if l == nil {
		l = &line{client: client}
		l.element = p.rotation.PushBack(l)
		if p.lines == nil {
			p.lines = make(map[uint32]*line)
		}
		p.lines[client] = l
	}
	return l
}

// removeWaiter takes a waiter out of its line, and the line away behind its last waiter.
func (p *Pool) removeWaiter(l *line, w *Waiter) {
	l.waiters.Remove(w.element)
	w.element = nil
	p.waiting--
	if l.waiters.Len() == 0 {
		p.rotation.Remove(l.element)
		delete(p.lines, l.client)
	}
}

// Withdraw takes w out of its line. False means that it was granted already,
// or is being granted now.
func (p *Pool) Withdraw(w *Waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.element == nil {
		return false
	}
	p.removeWaiter(p.lines[w.Client], w)
	return true
}

// Add adds places, before others use the pool.
func (p *Pool) Add(permits int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free += permits
}

// Free counts the places that are free.
func (p *Pool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.free
}

// Waiting counts the waiters, and what waiters were granted so far.
func (p *Pool) Waiting() (waiters int, granted uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting, p.granted
}

// Give puts a place back, or hands it to the first waiter of the line whose turn it is.
func (p *Pool) Give() {
	if w := p.nextWaiter(); w != nil {
		lockorder.AssertNone("a waiter is granted what it waits for")
		w.Granted()
	}
}

// nextWaiter takes out the waiter that is granted a place; nil: there is none, and the place is free.
func (p *Pool) nextWaiter() *Waiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.rotation.Front()
	if first == nil {
		p.free++
		return nil
	}
	p.rotation.MoveToBack(first)
	l := first.Value.(*line)               //nolint:forcetypeassert // next has no others
	w := l.waiters.Front().Value.(*Waiter) //nolint:forcetypeassert // a line has no others
	p.removeWaiter(l, w)
	p.granted++
	return w
}

// Wait takes a place, waiting for one in the line of client 0 until done is closed.
func (p *Pool) Wait(done <-chan struct{}) bool {
	got := make(chan struct{}, 1)
	w := &Waiter{Granted: func() { got <- struct{}{} }}
	if p.Take(w) {
		return true
	}
	lockorder.AssertNone("a goroutine waits for a place")
	select {
	case <-got:
		return true
	case <-done:
		return !p.Withdraw(w) // a place that was granted meanwhile is taken
	}
}
