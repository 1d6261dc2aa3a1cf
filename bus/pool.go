package bus

import "sync"

// pool hands out a fixed set of things, first come, first served.
type pool[T any] struct {
	mu      sync.Mutex
	free    []T
	waiters []*poolWaiter[T] // oldest first
}

// poolWaiter is somebody's place in the queue of a pool.
type poolWaiter[T any] struct {
	// granted is called once, outside the pool's lock, on the goroutine that
	// gave the thing back.
	granted func(T)
}

// tryTake takes a thing if one is free and nobody is waiting for it.
func (p *pool[T]) tryTake() (T, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pop()
}

// take takes a thing or, when there is none, queues w, which is granted one
// later unless it is withdrawn.
func (p *pool[T]) take(w *poolWaiter[T]) (T, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.pop()
	if !ok {
		p.waiters = append(p.waiters, w)
	}
	return v, ok
}

func (p *pool[T]) pop() (v T, ok bool) {
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

// withdraw takes w out of the queue. False means that it was granted already,
// or is being granted now.
func (p *pool[T]) withdraw(w *poolWaiter[T]) bool {
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

// give puts a thing back, or hands it to whoever has waited longest.
func (p *pool[T]) give(v T) {
	p.mu.Lock()
	if len(p.waiters) == 0 {
		p.free = append(p.free, v)
		p.mu.Unlock()
		return
	}
	w := p.waiters[0]
	p.waiters = append(p.waiters[:0], p.waiters[1:]...)
	p.mu.Unlock()
	w.granted(v)
}

// wait takes a thing, waiting for one until done is closed.
func (p *pool[T]) wait(done <-chan struct{}) (T, bool) {
	got := make(chan T, 1)
	w := &poolWaiter[T]{granted: func(v T) { got <- v }}
	if v, ok := p.take(w); ok {
		return v, true
	}
	select {
	case v := <-got:
		return v, true
	case <-done:
		if !p.withdraw(w) {
			return <-got, true
		}
		var zero T
		return zero, false
	}
}
