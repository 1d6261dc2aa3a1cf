package codec_test

import "unsafe"

// alignedBytes returns a slice that begins on a cache line, as payloads in a
// store do.
func alignedBytes(n int) []byte {
	const line = 64
	buf := make([]byte, n+line)
	off := int(-address(buf) & (line - 1))
	return buf[off : off+n : off+n]
}

// address returns where the elements of s begin.
func address[T any](s []T) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s))) }

// alignOf returns the alignment of T.
func alignOf[T any]() int {
	var zero T
	return int(unsafe.Alignof(zero))
}
