package ringbuf

import "math/bits"

// indexPageCells is the number of cells that are made together.
const indexPageCells = 1 << indexPageShift

const indexPageShift = 10

// addressIndex finds the record of the chunk whose payload begins at an
// address, in constant time. It divides the buffer into cells so small that at
// most one live payload begins in each: a chunk has more bytes than its header
// and is no shorter than the alignment, save the last, which nothing follows.
//
// An entry is only a hint: it is written when a chunk is allocated and never
// erased, so lookup checks the record for the id of the chunk.
// Cells exist only for the parts of the buffer where payloads began.
type addressIndex struct {
	shift uint     // log2 of the cell's bytes
	pages []uint32 // where a page of cells is, counted in pages
	cells []uint32 // records; the first page stays empty and stands for all that do not exist
}

func newAddressIndex(geo geometry) addressIndex {
	shift := uint(bits.TrailingZeros64(max(geo.align, HeaderSize)))
	return addressIndex{
		shift: shift,
		pages: make([]uint32, geo.end>>(shift+indexPageShift)+1),
		cells: make([]uint32, indexPageCells),
	}
}

// put records that the payload of record ref begins at addr.
func (x *addressIndex) put(addr uint64, ref uint32) {
	cell := addr >> x.shift
	page := x.pages[cell>>indexPageShift]
	if page == 0 {
		page = x.addPage(cell >> indexPageShift)
	}
	x.cells[uint64(page)<<indexPageShift|cell%indexPageCells] = ref
}

// get returns the record last put for addr's cell, or none. Any addr is allowed.
func (x *addressIndex) get(addr uint64) uint32 {
	cell := addr >> x.shift
	if cell>>indexPageShift >= uint64(len(x.pages)) {
		return none
	}
	page := x.pages[cell>>indexPageShift]
	return x.cells[uint64(page)<<indexPageShift|cell%indexPageCells]
}

func (x *addressIndex) addPage(i uint64) uint32 {
	x.pages[i] = uint32(len(x.cells) >> indexPageShift)
	x.cells = append(x.cells, make([]uint32, indexPageCells)...)
	return x.pages[i]
}
