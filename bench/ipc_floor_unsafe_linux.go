package bench

import (
	"sync/atomic"
	"unsafe"
)

// flagOf is the flag at the beginning of a mapping, which is aligned to a page.
func flagOf(memory []byte) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&memory[:floorPage][0]))
}
