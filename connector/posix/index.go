package posix

import (
	"iter"
	"math/bits"
	"sync/atomic"
)

// index says which slots may have the value of an address: a hash table in shared memory,
// whose writer is the creator. Cells are looked along from where the hash points to
// until the first that is empty. No cell ever moves, and none becomes empty that
// something lies behind, so whoever looks while the creator writes finds all that is
// there before and after.
//
// A cell is the upper half of the hash, and the slot. What it names is a hint.
type index []atomic.Uint64

const (
	emptyCell   = 0
	removedCell = 1
	firstSlot   = 2 // so that no cell is one of these

	tagShift  = 32
	slotMask  = 1<<tagShift - 1
	cellBytes = 8
	// perSlot: at most half of the cells are in use.
	perSlot = 2
)

// indexCells is how many cells an index for so many slots has.
func indexCells(slots int) int { return 1 << bits.Len(uint(slots*perSlot-1)) }

func cellOf(hash uint64, slot uint32) uint64 {
	return hash>>tagShift<<tagShift | uint64(slot) + firstSlot
}

// a candidate is a cell whose slot may have the value.
type candidate struct {
	at   int
	cell uint64
}

func (c candidate) slot() uint32 { return uint32(c.cell&slotMask) - firstSlot }

// find lists the candidates for a hash.
func (x index) find(hash uint64) iter.Seq[candidate] {
	return func(yield func(candidate) bool) {
		for i := range x {
			at := (int(hash&uint64(len(x)-1)) + i) & (len(x) - 1)
			cell := x[at].Load()
			switch {
			case cell == emptyCell:
				return
			case cell != removedCell && cell>>tagShift == hash>>tagShift:
				if !yield(candidate{at, cell}) {
					return
				}
			}
		}
	}
}

// has reports whether a candidate is there still.
func (x index) has(c candidate) bool { return x[c.at].Load() == c.cell }

// add adds a slot, in the first cell that is not in use. Half of them never are.
func (x index) add(hash uint64, slot uint32) (at int) {
	at = int(hash & uint64(len(x)-1)) //nolint:gosec // an index is smaller
	for x[at].Load() > removedCell {
		at = (at + 1) & (len(x) - 1)
	}
	x.set(at, hash, slot)
	return at
}

// set has a cell name another slot, for a value that replaces one.
func (x index) set(at int, hash uint64, slot uint32) { x[at].Store(cellOf(hash, slot)) }

// remove takes a cell out of use. Removed cells before an empty one have nothing
// behind them: they become empty, or a search would look along all that ever was.
func (x index) remove(at int) {
	x[at].Store(removedCell)
	if x[(at+1)&(len(x)-1)].Load() != emptyCell {
		return
	}
	for x[at].Load() == removedCell {
		x[at].Store(emptyCell)
		at = (at - 1) & (len(x) - 1)
	}
}
