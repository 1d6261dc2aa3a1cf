package accounts

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// unmapping gives back the memory of all buses of this process.
var unmapping unmapper

// Unmapped returns when all memory that was released before has been given back to the system, or
// the context ends.
func Unmapped(ctx context.Context) error { return unmapping.wait(ctx) }

// unmapper gives memory back to the system on a goroutine of its own. The kernel frees
// page by page: 64 MiB take 10 ms, and several times that if other processes use the
// processor. The goroutine that releases a segment last, such as one that serves a
// session, would delay its other work by that time.
type unmapper struct {
	mu      lockorder.Mutex[lockorder.Unmapper]
	todo    []func() // in order
	running bool     // a goroutine runs todo
}

const (
	// unmapAsyncBytes is the size from which on memory is given back by the unmapper's
	// goroutine. Smaller memory takes less time than the start of a goroutine on a busy
	// machine.
	unmapAsyncBytes = 1 << 20
	// maxUnmapping bounds the segments that wait: if there are more, the goroutine that
	// releases a segment gives it back itself.
	maxUnmapping = 16
)

// close closes a segment without references.
func (u *unmapper) close(mem *shmstore.Segment) {
	if mem.Size() < unmapAsyncBytes || !u.enqueue(mem.Close, maxUnmapping) {
		mem.Close()
	}
}

// enqueue makes the goroutine call f, behind the functions that wait. It reports false if most
// wait already.
func (u *unmapper) enqueue(f func(), most int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if most > 0 && len(u.todo) >= most {
		return false
	}
	u.todo = append(u.todo, f)
	if !u.running {
		u.running = true
		go u.run()
	}
	return true
}

func (u *unmapper) run() {
	for {
		u.mu.Lock()
		if len(u.todo) == 0 {
			u.todo, u.running = nil, false
			u.mu.Unlock()
			return
		}
		f := u.todo[0]
		u.todo = u.todo[1:]
		u.mu.Unlock()
		f()
	}
}

// wait returns when all segments that were closed before have been given back, or the
// context ends.
func (u *unmapper) wait(ctx context.Context) error {
	u.mu.Lock()
	idle := !u.running
	u.mu.Unlock()
	if idle {
		return nil
	}
	done := make(chan struct{})
	u.enqueue(func() { close(done) }, 0)
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("memory is still being given back: %w", context.Cause(ctx))
	}
}
