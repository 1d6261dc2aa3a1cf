//go:build !lockcheck

package lockorder

import "sync"

type (
	// Mutex is a [sync.Mutex] of class C.
	Mutex[C any] = sync.Mutex

	// RWMutex is a [sync.RWMutex] of class C.
	RWMutex[C any] = sync.RWMutex

	// Right is a mutex of class C that guards no data: a goroutine may wait, and call handlers,
	// while it has it.
	Right[C any] = sync.Mutex
)

// AssertNone says that the goroutine holds no lock but rights, since it is about to do what the
// argument says. It is empty without the build tag lockcheck.
func AssertNone(string) {}
