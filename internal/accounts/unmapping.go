package accounts

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// unmapping gives back the memory of all buses of this process.
var unmapping unmapper

// Unmapped returns when all memory that was let go of before has been given back to the system,
// or the context ends.
func Unmapped(ctx context.Context) error { return unmapping.wait(ctx) }

// unmapper gives memory back to the system, beside whoever let go of it last. The
// kernel frees page by page: 64 MiB take it 10 ms, and several times that where other
// processes want the processor. Who lets go last may be anybody, and a session that has
// others wait for it.
type unmapper struct {
	mu      lockorder.Mutex[lockorder.Unmapper]
	todo    []func() // in order
	running bool     // a goroutine does it
}

const (
	// unmapAsyncBytes is from how many bytes on memory is given back beside. What is
	// smaller takes less than a goroutine's way to a processor that is busy.
	unmapAsyncBytes = 1 << 20
	// maxUnmapping bounds what waits: whoever makes memory faster than it is given
	// back does that part too.
	maxUnmapping = 16
)

// close closes a segment that nobody refers to.
func (u *unmapper) close(mem *shmstore.Segment) {
	if mem.Size() < unmapAsyncBytes || !u.enqueue(mem.Close, maxUnmapping) {
		mem.Close()
	}
}

// enqueue has something done, behind what waits. It reports false if that is most.
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

// wait returns when all that was closed before has been given back, or the context
// ends.
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
