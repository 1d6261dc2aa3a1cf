//go:build lockcheck

package lockorder

import "sync"

// Mutex is a [sync.Mutex] of class C.
type Mutex[C any] struct {
	mu   sync.Mutex
	held heldLock // guarded by mu
}

// Lock locks m. The process ends if a lock that the goroutine holds forbids it.
func (m *Mutex[C]) Lock() {
	c := classOf[C](false)
	c.check()
	m.mu.Lock()
	m.held.record(c, m)
}

// TryLock locks m if it is free.
func (m *Mutex[C]) TryLock() bool {
	ok := m.mu.TryLock()
	if ok {
		m.held.record(classOf[C](false), m)
	}
	return ok
}

// Unlock unlocks m.
func (m *Mutex[C]) Unlock() {
	m.held.clear()
	m.mu.Unlock()
}

// Right is a mutex of class C that guards no data: a goroutine may wait, and call handlers,
// while it holds a Right.
type Right[C any] struct {
	mu   sync.Mutex
	held heldLock // guarded by mu
}

// Lock locks r. The process ends if a lock that the goroutine holds forbids it.
func (r *Right[C]) Lock() {
	c := classOf[C](true)
	c.check()
	r.mu.Lock()
	r.held.record(c, r)
}

// TryLock locks r if it is free.
func (r *Right[C]) TryLock() bool {
	ok := r.mu.TryLock()
	if ok {
		r.held.record(classOf[C](true), r)
	}
	return ok
}

// Unlock unlocks r.
func (r *Right[C]) Unlock() {
	r.held.clear()
	r.mu.Unlock()
}

// RWMutex is a [sync.RWMutex] of class C.
type RWMutex[C any] struct {
	mu   sync.RWMutex
	held heldLock // of the writer; guarded by mu
}

// Lock locks m for writing. The process ends if a lock that the goroutine holds forbids it.
func (m *RWMutex[C]) Lock() {
	c := classOf[C](false)
	c.check()
	m.mu.Lock()
	m.held.record(c, m)
}

// Unlock unlocks m for writing.
func (m *RWMutex[C]) Unlock() {
	m.held.clear()
	m.mu.Unlock()
}

// RLock locks m for reading. The process ends if a lock that the goroutine holds forbids it. m
// itself forbids it: a second RLock would block behind a waiting writer.
func (m *RWMutex[C]) RLock() {
	c := classOf[C](false)
	c.check()
	m.mu.RLock()
	new(heldLock).record(c, m)
}

// RUnlock unlocks m for reading.
func (m *RWMutex[C]) RUnlock() {
	readHold(m).clear()
	m.mu.RUnlock()
}
