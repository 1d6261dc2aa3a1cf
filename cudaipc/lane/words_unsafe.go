package lane

import (
	"sync/atomic"
	"unsafe"
)

// wordAt returns the word at an offset of mapped memory, which is a multiple of 4.
func wordAt(mem []byte, offset int64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mem[offset : offset+4 : offset+4][0]))
}
