package emul

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// pointer turns an address outside Go's heap into a pointer.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// mapAt is mmap; an address other than 0 needs MAP_FIXED.
func mapAt(address, bytes uintptr, fd, prot, flags int) (uintptr, error) {
	p, err := unix.MmapPtr(fd, 0, pointer(address), bytes, prot, flags)
	return uintptr(p), err
}

func unmap(s span) { _ = unix.MunmapPtr(pointer(s.base), s.bytes) }

// wordAt returns the 32-bit word at an address that is a multiple of 4.
func wordAt(address uintptr) *atomic.Uint32 { return (*atomic.Uint32)(pointer(address)) }

// fault is an accessed address without memory, or without memory that may be written.
type fault struct{ address uintptr }

// touch runs f and returns the address of an illegal access, if there was one.
func touch(f func()) (bad *fault) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface {
			runtime.Error
			Addr() uintptr
		}:
			bad = &fault{r.Addr()}
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// move copies bytes, which may overlap.
func move(dst, src cudaipc.Ptr, bytes int64) {
	copy(unsafe.Slice((*byte)(pointer(uintptr(dst))), bytes), unsafe.Slice((*byte)(pointer(uintptr(src))), bytes))
}

// peek reads a byte. Atomic operations call it first: the race detector implements them in C, where
// a fault would end the process.
func peek(at cudaipc.Ptr) { runtime.KeepAlive(*(*byte)(pointer(uintptr(at)))) }
