package emul

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// TestRemoveWaits: memory stays mapped while an operation accesses it, and no other operation
// acquires it.
func TestRemoveWaits(t *testing.T) {
	fd, err := newMemfd("omnibus-emul-test", int64(pageBytes))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r, p := newRegions(), &primary{}
	defer r.close()
	a, err := r.mapDevice(p, ofArena, fd, int64(pageBytes), int64(pageBytes))
	if err != nil {
		t.Fatal(err)
	}
	at := cudaipc.Ptr(a.base)
	in, ok := r.acquire(p, at, 1, write)
	if !ok {
		t.Fatal("mapped memory cannot be acquired")
	}
	removed := make(chan struct{})
	go func() {
		r.remove(a)
		close(removed)
	}()
	for r.find(at) != nil {
		runtime.Gosched()
	}
	if bad := touch(func() { peek(at) }); bad != nil {
		t.Error("the memory was unmapped during an operation")
	}
	if _, ok := r.acquire(p, at, 1, write); ok {
		t.Error("memory that is being removed was acquired")
	}
	r.release(in)
	<-removed
	if bad := touch(func() { peek(at) }); bad == nil {
		t.Error("the memory is still mapped")
	}
}
