package lane

import (
	"sync/atomic"
	"unsafe"
)

// The size and the offsets of this type are a contract between processes.
var (
	_ [pageBytes]byte    = [unsafe.Sizeof(receiverPage{})]byte{}
	_ [headOffset]byte   = [unsafe.Offsetof(receiverPage{}.head)]byte{}
	_ [asleepOffset]byte = [unsafe.Offsetof(receiverPage{}.asleep)]byte{}
)

// segmentAlign is where a segment may begin: at a cache line, which also
// aligns the atomics. Mappings begin at a page.
const segmentAlign = 64

func isAligned(segment []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(segment)))%segmentAlign == 0
}

// The overlays below are for segments that have been found to be aligned and
// of the right size.

func receiverPageOf(segment []byte) *receiverPage {
	return (*receiverPage)(unsafe.Pointer(&segment[:pageBytes][0]))
}

// headerAt is the header at an offset, which is a multiple of 8. Indexing keeps
// it inside the frames.
func headerAt(frames []byte, offset uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&frames[offset:][:headerBytes][0]))
}
