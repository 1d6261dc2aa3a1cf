//go:build lockcheck

package lockorder

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// class is a class of locks at run time.
type class struct {
	name  string
	rank  int
	right bool
}

func classOf[C any](right bool) class {
	t := reflect.TypeFor[C]()
	return class{name: t.Name(), rank: t.Len(), right: right}
}

func (c class) String() string { return fmt.Sprintf("%s (rank %d)", c.name, c.rank) }

// heldLock records that a goroutine holds a lock. It is part of the lock, except for readers, which
// share the lock.
type heldLock struct {
	class
	lock  any         // pointer to the lock
	owner *goroutine  // nil: the lock is free
	stack [32]uintptr // where it was taken
	depth int
}

// goroutine records the locks that a goroutine holds, in the order in which it took them.
type goroutine struct {
	id   uintptr
	held []*heldLock
}

// goroutines are the goroutines that hold locks. spare are unused entries.
var goroutines = struct {
	sync.Mutex
	all   map[uintptr]*goroutine
	spare []*goroutine
}{all: make(map[uintptr]*goroutine)}

// check ends the process if the goroutine holds a lock that does not rank before c.
func (c class) check() {
	if h := firstHeld(func(h *heldLock) bool { return h.rank >= c.rank }); h != nil {
		fail(fmt.Sprintf("lockorder: %v is taken while %v is held\n%v is taken at\n%s%v was taken at\n%s",
			c, h.class, c, trace(stackAbove(2)), h.class, h.trace()))
	}
}

// AssertNone ends the process if the goroutine holds a lock other than a [Right]: the action that
// what describes can wait, end a request or call a handler.
func AssertNone(what string) {
	if h := firstHeld(func(h *heldLock) bool { return !h.right }); h != nil {
		fail(fmt.Sprintf("lockorder: %s while %v is held\nIt does so at\n%s%v was taken at\n%s",
			what, h.class, trace(stackAbove(1)), h.class, h.trace()))
	}
}

// fail ends the process. It panics on a goroutine of its own, so that no recover hides the fault.
var fail = func(report string) {
	go panic(report)
	select {}
}

// firstHeld is the oldest lock that the calling goroutine holds and is reports true for, or nil.
func firstHeld(is func(*heldLock) bool) *heldLock {
	id := goroutineID()
	goroutines.Lock()
	defer goroutines.Unlock()
	if g := goroutines.all[id]; g != nil {
		if i := slices.IndexFunc(g.held, is); i >= 0 {
			return g.held[i]
		}
	}
	return nil
}

// record notes that the calling goroutine holds the lock.
func (h *heldLock) record(c class, lock any) {
	h.class, h.lock = c, lock
	h.depth = runtime.Callers(3, h.stack[:])
	id := goroutineID()
	goroutines.Lock()
	defer goroutines.Unlock()
	g := goroutines.all[id]
	if g == nil {
		if n := len(goroutines.spare); n > 0 {
			g, goroutines.spare = goroutines.spare[n-1], goroutines.spare[:n-1]
		} else {
			g = new(goroutine)
		}
		g.id = id
		goroutines.all[id] = g
	}
	g.held = append(g.held, h)
	h.owner = g
}

// clear notes that the lock is released, on any goroutine. It does nothing for a free lock or nil:
// package sync reports the unlock of an unlocked lock.
func (h *heldLock) clear() {
	if h == nil {
		return
	}
	goroutines.Lock()
	defer goroutines.Unlock()
	g := h.owner
	if g == nil {
		return
	}
	h.owner = nil
	g.held = slices.DeleteFunc(g.held, func(o *heldLock) bool { return o == h })
	if len(g.held) == 0 {
		delete(goroutines.all, g.id)
		goroutines.spare = append(goroutines.spare, g)
	}
}

// readHold is the calling goroutine's record of a lock, or that of another goroutine if it has none, or nil.
func readHold(lock any) *heldLock {
	is := func(h *heldLock) bool { return h.lock == lock }
	if own := firstHeld(is); own != nil {
		return own
	}
	goroutines.Lock()
	defer goroutines.Unlock()
	for _, g := range goroutines.all {
		if i := slices.IndexFunc(g.held, is); i >= 0 {
			return g.held[i]
		}
	}
	return nil
}

func (h *heldLock) trace() string { return trace(h.stack[:h.depth]) }

// stackAbove is the stack without its innermost calls.
func stackAbove(calls int) []uintptr {
	stack := make([]uintptr, 32)
	return stack[:runtime.Callers(2+calls, stack)]
}

func trace(stack []uintptr) string {
	var b strings.Builder
	for frames := runtime.CallersFrames(stack); ; {
		frame, more := frames.Next()
		fmt.Fprintf(&b, "\t%s\n\t\t%s:%d\n", frame.Function, frame.File, frame.Line)
		if !more {
			return b.String()
		}
	}
}

// goroutineID identifies a live goroutine: it is the address of the runtime's entry. To read the
// number that the runtime prints would take a walk of the whole stack, at each lock. No goroutine
// may end while it holds a lock, since a new goroutine may get its entry.
func goroutineID() uintptr
