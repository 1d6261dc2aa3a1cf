//go:build !lockcheck

package lockorder

import "sync"

type (
	// Mutex is a [sync.Mutex] of class C.
	Mutex[C any] = sync.Mutex

	// RWMutex is a [sync.RWMutex] of class C.
	RWMutex[C any] = sync.RWMutex

	// Right is a mutex of class C that guards no data: a goroutine may wait, and call handlers,
	// while it holds a Right.
	Right[C any] = sync.Mutex
)

// AssertNone asserts that the goroutine holds no lock but rights before the action that the
// argument describes. It is empty without the build tag lockcheck.
func AssertNone(string) {}
