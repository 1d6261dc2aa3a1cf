package scoreboard

import "unsafe"

func entriesIn(memory []byte) []Entry {
	_ = memory[Bytes-1]
	return unsafe.Slice((*Entry)(unsafe.Pointer(unsafe.SliceData(memory))), Entries)
}
