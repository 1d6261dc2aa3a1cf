package shmstore

import (
	"sync/atomic"
	"unsafe"
)

// The sizes of these types are a contract between processes.
var (
	_ [lineBytes]byte  = [unsafe.Sizeof(line{})]byte{}
	_ [entryBytes]byte = [unsafe.Sizeof(entry{})]byte{}
)

// The overlays below turn the bytes of a segment into the types of layout.go.
// Segments are mapped at page boundaries, or taken from alignedBytes, so all
// atomics are aligned; indexing keeps every access inside the segment.

func linesOf(directory []byte, slots int) []line {
	b := directory[pageBytes:directoryBytes(slots)]
	return unsafe.Slice((*line)(unsafe.Pointer(&b[0])), slots)
}

func entriesOf(ledger []byte, slots int) []entry {
	b := ledger[pageBytes:ledgerBytes(slots)]
	return unsafe.Slice((*entry)(unsafe.Pointer(&b[0])), slots)
}

func columnOf(account []byte, slots int) []uint32 {
	b := account[pageBytes:columnBytes(slots)]
	return unsafe.Slice((*uint32)(unsafe.Pointer(&b[0])), slots)
}

func wantRoomOf(directory []byte) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&directory[wantRoomOffset]))
}

// alignedBytes returns n zeroed bytes on the heap that start on a cache line.
func alignedBytes(n int) []byte {
	b := make([]byte, n+lineBytes-1)
	skip := -uintptr(unsafe.Pointer(&b[0])) & (lineBytes - 1)
	return b[skip : int(skip)+n : int(skip)+n]
}
