package shelf

import "unsafe"

// The sizes and offsets of these types are a contract between processes.
var (
	_ [Bytes]byte           = [unsafe.Sizeof(page{})]byte{}
	_ [slotBytes]byte       = [unsafe.Sizeof(slot{})]byte{}
	_ [publishedOffset]byte = [unsafe.Offsetof(page{}.published)]byte{}
	_ [pageBytes]byte       = [unsafe.Offsetof(page{}.slots)]byte{}
)

// pageOf is the shelf in memory of its size, which a mapping aligns.
func pageOf(b []byte) *page { return (*page)(unsafe.Pointer(&b[:Bytes][0])) }
