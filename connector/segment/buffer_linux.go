package segment

import (
	"math/bits"
	"sync"
)

// minPooled is the least size of a buffer that is kept: smaller ones cost less to make
// than to find.
const minPooled = 32 << 10

// buffers are private memory that is used again, for it is dear to get large pieces of
// it anew: they are cleared, and each of their pages is mapped at its first use. By
// the number of bits of their sizes; what nobody uses the collector takes.
var buffers [bits.UintSize]sync.Pool

// A buffer is private memory, and the payload that was read into it.
type buffer struct {
	bytes []byte // nil once it is released
}

// getBuffer returns one with so many bytes, which contain anything.
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
