package posix

import (
	"sync/atomic"
	"unsafe"
)

// wordsOf turns mapped bytes, which begin at a page, into numbers that other
// processes read and write.
func wordsOf(b []byte) []atomic.Uint64 {
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&b[0])), len(b)/cellBytes)
}
