package tlsf

import (
	"fmt"
	"math/bits"
)

const (
	// Granule is the unit of sizes and offsets, in bytes: the alignment that GPUs want.
	Granule = 1 << granuleLog

	granuleLog = 8
	// Each power of two of sizes is divided into this many classes, so that a block is at most 1/32
	// larger than the smallest of its class.
	secondLog = 5
	second    = 1 << secondLog
	// Sizes are below 1<<sizeBits granules.
	sizeBits = 32
	first    = sizeBits - secondLog + 1

	// maxScan bounds the blocks that find checks in the class of the size itself.
	maxScan = 8

	// MaxBytes is the size of the largest memory of an Allocator.
	MaxBytes = (1<<sizeBits - 1) * Granule
)

// ref is the index of a block; none is no block.
type ref uint32

const none ref = 0

// block is a run of granules that is in use or free as a whole.
type block struct {
	at, size       uint32 // in granules
	before, behind ref    // in memory
	prev, next     ref    // in the list of its class, while it is free
	free           bool
}

// Allocator allocates ranges of a memory that it never touches. It is for one goroutine at a time.
type Allocator struct {
	blocks []block // the first is none
	spare  ref     // unused records
	used   map[uint32]ref
	heads  [first][second]ref
	// Bit maps of the lists that are not empty: for each power of two, and within it.
	firstMap  uint32
	secondMap [first]uint32

	size      uint32 // in granules
	usedUnits uint32
}

// New makes an allocator for a memory of sizeBytes, without the bytes beyond the last whole
// granule. It panics if that is less than one granule, or above [MaxBytes].
func New(sizeBytes int64) *Allocator {
	if sizeBytes < Granule || sizeBytes > MaxBytes {
		panic(fmt.Sprintf("tlsf: a memory of %d bytes is not in [%d, %d]", sizeBytes, Granule, int64(MaxBytes)))
	}
	a := &Allocator{
		blocks: make([]block, 1),
		used:   make(map[uint32]ref),
		size:   uint32(sizeBytes >> granuleLog),
	}
	whole := a.newBlock()
	a.blocks[whole].size = a.size
	a.list(whole)
	return a
}

// Allocate returns the offset of a free range of size bytes. It returns false if there is none in
// one piece, or none that is found in constant time. A size of zero or less takes a granule.
func (a *Allocator) Allocate(sizeBytes int64) (offset int64, ok bool) {
	if sizeBytes > int64(a.size)<<granuleLog {
		return 0, false
	}
	size := uint32((max(sizeBytes, 1) + Granule - 1) >> granuleLog)
	r := a.find(size)
	if r == none {
		return 0, false
	}
	a.unlist(r)
	a.split(r, size)
	b := &a.blocks[r]
	a.used[b.at] = r
	a.usedUnits += size
	return int64(b.at) << granuleLog, true
}

// Free frees the range that begins at offset. It panics if no used range begins there, which is a
// bug of the caller.
func (a *Allocator) Free(offset int64) {
	r, ok := a.used[uint32(offset>>granuleLog)]
	if !ok || offset%Granule != 0 || offset>>granuleLog >= int64(a.size) || offset < 0 {
		panic(fmt.Sprintf("tlsf: Free of %d, where no used range begins", offset))
	}
	delete(a.used, a.blocks[r].at)
	a.usedUnits -= a.blocks[r].size
	if before := a.blocks[r].before; before != none && a.blocks[before].free {
		a.unlist(before)
		a.join(before, r)
		r = before
	}
	if behind := a.blocks[r].behind; behind != none && a.blocks[behind].free {
		a.unlist(behind)
		a.join(r, behind)
	}
	a.list(r)
}

// find returns a free block of at least size granules.
//
// The blocks of the size's own class come first, because some have just this size: with few
// distinct sizes, ranges are reused without fragmentation. Not all of them are large enough, and
// only maxScan are checked. In the classes above, every block fits.
func (a *Allocator) find(size uint32) ref {
	fl, sl := classOf(size)
	r := a.heads[fl][sl]
	for range maxScan {
		if r == none {
			break
		}
		if a.blocks[r].size >= size {
			return r
		}
		r = a.blocks[r].next
	}
	if above := a.secondMap[fl] &^ (2<<sl - 1); above != 0 {
		return a.heads[fl][bits.TrailingZeros32(above)]
	}
	above := a.firstMap &^ (2<<fl - 1)
	if above == 0 {
		return none
	}
	fl = bits.TrailingZeros32(above)
	return a.heads[fl][bits.TrailingZeros32(a.secondMap[fl])]
}

// classOf returns the list of free blocks of size granules.
func classOf(size uint32) (fl, sl int) {
	if size < second {
		return 0, int(size)
	}
	log := bits.Len32(size) - 1
	return log - secondLog + 1, int(size>>(log-secondLog)) - second
}

// split cuts an unlisted block to size granules, and lists the rest.
func (a *Allocator) split(r ref, size uint32) {
	if a.blocks[r].size == size {
		return
	}
	rest := a.newBlock()
	b, n := &a.blocks[r], &a.blocks[rest]
	*n = block{at: b.at + size, size: b.size - size, before: r, behind: b.behind}
	if n.behind != none {
		a.blocks[n.behind].before = rest
	}
	b.size, b.behind = size, rest
	a.list(rest)
}

// join merges two unlisted neighbours.
func (a *Allocator) join(r, behind ref) {
	b, gone := &a.blocks[r], &a.blocks[behind]
	b.size += gone.size
	b.behind = gone.behind
	if b.behind != none {
		a.blocks[b.behind].before = r
	}
	*gone = block{next: a.spare}
	a.spare = behind
}

func (a *Allocator) newBlock() ref {
	if r := a.spare; r != none {
		a.spare = a.blocks[r].next
		a.blocks[r] = block{}
		return r
	}
	a.blocks = append(a.blocks, block{})
	return ref(len(a.blocks) - 1)
}

// list inserts a free block at the head of its class.
func (a *Allocator) list(r ref) {
	b := &a.blocks[r]
	fl, sl := classOf(b.size)
	b.free, b.prev, b.next = true, none, a.heads[fl][sl]
	if b.next != none {
		a.blocks[b.next].prev = r
	}
	a.heads[fl][sl] = r
	a.secondMap[fl] |= 1 << sl
	a.firstMap |= 1 << fl
}

// unlist removes a free block from its class.
func (a *Allocator) unlist(r ref) {
	b := &a.blocks[r]
	b.free = false
	if b.next != none {
		a.blocks[b.next].prev = b.prev
	}
	if b.prev != none {
		a.blocks[b.prev].next = b.next
		return
	}
	fl, sl := classOf(b.size)
	a.heads[fl][sl] = b.next
	if b.next != none {
		return
	}
	if a.secondMap[fl] &^= 1 << sl; a.secondMap[fl] == 0 {
		a.firstMap &^= 1 << fl
	}
}

// UsedBytes is the sum of the used ranges, in whole granules.
func (a *Allocator) UsedBytes() int64 { return int64(a.usedUnits) << granuleLog }

// Blocks is the number of allocations in use.
func (a *Allocator) Blocks() int { return len(a.used) }

// LargestFree is the size of the largest free block. It checks all blocks of the highest class.
func (a *Allocator) LargestFree() int64 {
	if a.firstMap == 0 {
		return 0
	}
	fl := bits.Len32(a.firstMap) - 1
	var largest uint32
	for r := a.heads[fl][bits.Len32(a.secondMap[fl])-1]; r != none; r = a.blocks[r].next {
		largest = max(largest, a.blocks[r].size)
	}
	return int64(largest) << granuleLog
}
