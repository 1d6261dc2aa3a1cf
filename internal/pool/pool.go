package pool

import (
	"container/list"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// Pool hands out a fixed number of permits. The zero value has none; Add adds them.
type Pool struct {
	mu       lockorder.Mutex[lockorder.Pool]
	free     int
	lines    map[uint32]*line // by client; no line is empty
	rotation list.List        // of the same lines: the one to be served next first

	waiting int    // waiters in all lines
	granted uint64 // permits that waiters have got so far
}

// line is the waiters of one client, the oldest first.
type line struct {
	client  uint32
	waiters list.List
	element *list.Element // in rotation
}

// Waiter is a waiter in a line of a pool.
type Waiter struct {
	// Client selects the line of the waiter.
	Client uint32
	// Granted is called once, outside the pool's lock, on the goroutine that
	// gave the permit back.
	Granted func()

	element *list.Element // in the line; nil: it does not wait
}

// TryTake takes a permit if one is free. None is free while waiters wait.
func (p *Pool) TryTake() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take()
}

// Take takes a permit. If there is none, it returns false and queues w, which is granted a
// permit later unless it is withdrawn.
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

// line finds the line of a client. A new line is served after all others.
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

// removeWaiter removes a waiter from its line, and removes the line if it is empty.
func (p *Pool) removeWaiter(l *line, w *Waiter) {
	l.waiters.Remove(w.element)
	w.element = nil
	p.waiting--
	if l.waiters.Len() == 0 {
		p.rotation.Remove(l.element)
		delete(p.lines, l.client)
	}
}

// Withdraw removes w from its line. It returns false if w was granted a permit
// already, or is being granted one now.
func (p *Pool) Withdraw(w *Waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.element == nil {
		return false
	}
	p.removeWaiter(p.lines[w.Client], w)
	return true
}

// Add adds permits, before other goroutines use the pool.
func (p *Pool) Add(permits int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free += permits
}

// Free counts the free permits.
func (p *Pool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.free
}

// Waiting counts the waiters, and the permits that waiters were granted so far.
func (p *Pool) Waiting() (waiters int, granted uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting, p.granted
}

// Give gives a permit back, or grants it to the first waiter of the next line.
func (p *Pool) Give() {
	if w := p.nextWaiter(); w != nil {
		lockorder.AssertNone("a waiter is granted a permit")
		w.Granted()
	}
}

// nextWaiter removes the waiter that is granted a permit; nil: there is none, and the permit is free.
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

// Wait takes a permit, and waits for one in the line of client 0 until done is closed. It
// reports whether it has taken one.
func (p *Pool) Wait(done <-chan struct{}) bool {
	got := make(chan struct{}, 1)
	w := &Waiter{Granted: func() { got <- struct{}{} }}
	if p.Take(w) {
		return true
	}
	lockorder.AssertNone("a goroutine waits for a permit")
	select {
	case <-got:
		return true
	case <-done:
		return !p.Withdraw(w) // a permit that was granted meanwhile is taken
	}
}
