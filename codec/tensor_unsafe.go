package codec

import (
	"fmt"
	"unsafe"
)

// elementsOf returns data as elements of type T. The length of data is a
// multiple of the element size; its address is checked here.
func elementsOf[T Element](data []byte) ([]T, error) {
	if len(data) == 0 {
		return []T{}, nil // without an element there is no address to check
	}
	var zero T
	first := unsafe.Pointer(unsafe.SliceData(data))
	if off := uintptr(first) % unsafe.Alignof(zero); off != 0 {
		return nil, fmt.Errorf("codec: tensor: %w: %v needs %d bytes and is off by %d; place the payload at a multiple of %d, or Clone the tensor",
			ErrAlignment, DTypeOf[T](), unsafe.Alignof(zero), off, dataAlignBytes)
	}
	return unsafe.Slice((*T)(first), len(data)/int(unsafe.Sizeof(zero))), nil
}

// bytesOf returns the memory of elements.
func bytesOf[T Element](elements []T) []byte {
	var zero T
	first := (*byte)(unsafe.Pointer(unsafe.SliceData(elements)))
	return unsafe.Slice(first, len(elements)*int(unsafe.Sizeof(zero)))
}

// makeAligned returns sizeBytes zero bytes, aligned for every element type. A
// plain make([]byte, n) promises no alignment.
func makeAligned(sizeBytes int) []byte {
	words := make([]uint64, (sizeBytes+7)/8)
	return bytesOf(words)[:sizeBytes:sizeBytes]
}
