package pool

import "github.com/omnibus-runtime/omnibus/internal/lockorder"

// Pool hands out a fixed set of things, first come, first served. It is empty at first.
type Pool[T any] struct {
	mu      lockorder.Mutex[lockorder.Pool]
	free    []T
	waiters []*Waiter[T] // oldest first
}

// Waiter is a place in the queue of a pool.
type Waiter[T any] struct {
	// Granted is called once, outside the pool's lock, on the goroutine that
	// gave the thing back.
	Granted func(T)
}

// TryTake takes a thing if one is free and no other waits for it.
func (p *Pool[T]) TryTake() (T, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pop()
}

// Take takes a thing or, when there is none, queues w, which is granted one
// later unless it is withdrawn.
func (p *Pool[T]) Take(w *Waiter[T]) (T, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.pop()
	if !ok {
		p.waiters = append(p.waiters, w)
	}
	return v, ok
}

func (p *Pool[T]) pop() (v T, ok bool) {
	n := len(p.free)
	if n == 0 || len(p.waiters) > 0 {
		return v, false
	}
	v = p.free[n-1]
	var zero T
	p.free[n-1] = zero
	p.free = p.free[:n-1]
	return v, true
}

// Withdraw takes w out of the queue. False means that it was granted already,
// or is being granted now.
func (p *Pool[T]) Withdraw(w *Waiter[T]) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, q := range p.waiters {
		if q == w {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			return true
		}
	}
	return false
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

// Give puts a thing back, or hands it to the waiter that has waited longest.
func (p *Pool[T]) Give(v T) {
	p.mu.Lock()
	if len(p.waiters) == 0 {
		p.free = append(p.free, v)
		p.mu.Unlock()
		return
	}
	w := p.waiters[0]
	p.waiters = append(p.waiters[:0], p.waiters[1:]...)
	p.mu.Unlock()
	lockorder.AssertNone("a waiter is granted what it waits for")
	w.Granted(v)
}

// Wait takes a thing, waiting for one until done is closed.
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
