package segment

import (
	"math/bits"
	"sync"
)

// minPooled is the size of the smallest buffer that is pooled: smaller ones cost less to allocate
// than to find.
const minPooled = 32 << 10

// buffers pools private memory, by the number of bits of its size: new large memory is expensive,
// because the kernel clears it and maps each page at its first use. The garbage collector frees
// buffers that are not used.
var buffers [bits.UintSize]sync.Pool

// A buffer is private memory, and the payload that was read into it.
type buffer struct {
	bytes []byte // nil after Release
}

// getBuffer returns a buffer of size bytes with arbitrary contents.
func getBuffer(size int) *buffer {
	if size >= minPooled {
		if b, ok := buffers[bits.Len(uint(size))].Get().(*[]byte); ok && cap(*b) >= size { //nolint:gosec // a length
			return &buffer{(*b)[:size:cap(*b)]}
		}
	}
	return &buffer{make([]byte, size)}
}

// Bytes implements [connector.Payload].
func (b *buffer) Bytes() []byte { return b.bytes[:len(b.bytes):len(b.bytes)] }

// Release implements [connector.Payload].
func (b *buffer) Release() {
	if size := cap(b.bytes); size >= minPooled {
		all := b.bytes[:size]
		buffers[bits.Len(uint(size))].Put(&all)
	}
	b.bytes = nil
}
