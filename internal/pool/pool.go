package pool

import (
	"container/list"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// Pool hands out a fixed set of things, first come, first served. It is empty at first.
type Pool[T any] struct {
	mu    lockorder.Mutex[lockorder.Pool]
	free  []T
	lines map[uint32]*line // by client: those in which waiters stand
	next  list.List        // of the same lines: the one whose turn it is first

	waiting int    // waiters in all lines
	granted uint64 // things that waiters have got so far
}

// line is the waiters of one client, the oldest first.
type line struct {
	client  uint32
	waiters list.List
	at      *list.Element // among the lines
}

// Waiter is a place in a line of a pool.
type Waiter[T any] struct {
	// Client says in which line the waiter stands.
	Client uint32
	// Granted is called once, outside the pool's lock, on the goroutine that
	// gave the thing back.
	Granted func(T)

	at *list.Element // in the line; nil: it does not wait
}

// TryTake takes a thing if one is free, which none is while others wait.
func (p *Pool[T]) TryTake() (T, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pop()
}

// Take takes a thing or, when there is none, has w stand in line, which is granted one
// later unless it is withdrawn.
func (p *Pool[T]) Take(w *Waiter[T]) (T, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.pop()
	if !ok {
		w.at = p.line(w.Client).waiters.PushBack(w)
		p.waiting++
	}
	return v, ok
}

func (p *Pool[T]) pop() (v T, ok bool) {
	n := len(p.free)
	if n == 0 {
		return v, false
	}
	v = p.free[n-1]
	var zero T
	p.free[n-1] = zero
	p.free = p.free[:n-1]
	return v, true
}

// line finds the line of a client. A new one has its turn behind all others.
func (p *Pool[T]) line(client uint32) *line {
	l := p.lines[client]
	if l == nil {
		l = &line{client: client}
		l.at = p.next.PushBack(l)
		if p.lines == nil {
			p.lines = make(map[uint32]*line)
		}
		p.lines[client] = l
	}
	return l
}

// leave takes a waiter out of its line, and the line away behind its last waiter.
func (p *Pool[T]) leave(l *line, w *Waiter[T]) {
	l.waiters.Remove(w.at)
	w.at = nil
	p.waiting--
	if l.waiters.Len() == 0 {
		p.next.Remove(l.at)
		delete(p.lines, l.client)
	}
}

// Withdraw takes w out of its line. False means that it was granted already,
// or is being granted now.
func (p *Pool[T]) Withdraw(w *Waiter[T]) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.at == nil {
		return false
	}
	p.leave(p.lines[w.Client], w)
	return true
}

// Add puts things in, before others use the pool.
func (p *Pool[T]) Add(all ...T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, all...)
}

// Free counts the things that are free.
func (p *Pool[T]) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free)
}

// Waiting counts the waiters, and what waiters were granted so far.
func (p *Pool[T]) Waiting() (waiters int, granted uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting, p.granted
}

// Give puts a thing back, or hands it to the first waiter of the line whose turn it is.
func (p *Pool[T]) Give(v T) {
	if w := p.turn(v); w != nil {
		lockorder.AssertNone("a waiter is granted what it waits for")
		w.Granted(v)
	}
}

// turn takes out the waiter that is granted a thing; nil: there is none, and the thing is free.
func (p *Pool[T]) turn(v T) *Waiter[T] {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.next.Front()
	if first == nil {
		p.free = append(p.free, v)
		return nil
	}
	p.next.MoveToBack(first)
	l := first.Value.(*line)                  //nolint:forcetypeassert // next has no others
	w := l.waiters.Front().Value.(*Waiter[T]) //nolint:forcetypeassert // a line has no others
	p.leave(l, w)
	p.granted++
	return w
}

// Wait takes a thing, waiting for one in the line of client 0 until done is closed.
func (p *Pool[T]) Wait(done <-chan struct{}) (T, bool) {
	got := make(chan T, 1)
	w := &Waiter[T]{Granted: func(v T) { got <- v }}
	if v, ok := p.Take(w); ok {
		return v, true
	}
	lockorder.AssertNone("a goroutine waits for a place")
	select {
	case v := <-got:
		return v, true
	case <-done:
		if !p.Withdraw(w) {
			return <-got, true
		}
		var zero T
		return zero, false
	}
}
