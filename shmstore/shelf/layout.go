package shelf

import "sync/atomic"

// A shelf is one segment that its owner alone writes. All fields are in the byte
// order of the machine.
//
//	offset  size  field
//	     0     8  magic, and the version of the layout
//	   128     8  published: the last number that the owner has told of, or tells of soon
//	  4096    32  slots, [Slots] of them
//
// A slot:
//
//	offset  size  field
//	     0     8  number of the value that lies there; 0: none. Written last
//	     8     8  offset of the value
//	    16     8  size, in bytes
//	    24     8  tag, which says what it is
//
// The value with number n lies in slot (n - first) modulo Slots, and its lock is on byte
// n - first of the file, which may be far behind its end.

const (
	// Slots is how many values lie on a shelf at a time.
	Slots = 1024
	// Numbers is how many values can be put there, in all its life. The range of a
	// shelf's numbers begins at a multiple of it.
	Numbers = 1 << 44

	magic = 0x4f53_5348_454c_4601 // a version in the last byte

	pageBytes       = 4096
	publishedOffset = 128
	slotBytes       = 32
	// Bytes is the size of a shelf's memory.
	Bytes = pageBytes + Slots*slotBytes
)

type page struct {
	magic     atomic.Uint64
	_         [publishedOffset - 8]byte
	published atomic.Uint64
	_         [pageBytes - publishedOffset - 8]byte
	slots     [Slots]slot
}

type slot struct {
	number, offset, size, tag atomic.Uint64
}

// Value says where a value lies, and what it is.
type Value struct {
	Offset, Size uint64
	// Tag is compared by whoever takes it: the same number of another thing
	// is a mistake.
	Tag uint64
}
