package shmstore

import (
	"math/bits"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// maxCandidates bounds the objects of one batch of an eviction, and
// with it the time between two checks whether enough is free. It is the
// number of bits in a mask of candidates.
const maxCandidates = 64

// batch holds the candidates of one call of evictBatch. Bit i of a mask stands for
// slots[i] and chunks[i]. The next batch begins with the chunk behind the last candidate.
//
// Eviction works reader by reader, not object by object: neighbours in age are
// mostly neighbours in the directory, so that one cache line of a ledger
// serves eight candidates.
type batch struct {
	slots  [maxCandidates]uint32
	chunks [maxCandidates + 1]ringbuf.Chunk
	span   slotSpan
}

// upTo returns the slots up to that of the last bit set in mask, including slots whose
// bits are not set.
func (b *batch) upTo(mask uint64) []uint32 { return b.slots[:bits.Len64(mask)] }

// setSpan finds the span of the candidates in mask.
func (b *batch) setSpan(mask uint64) {
	b.span = slotSpan{}
	if slots := b.upTo(mask); len(slots) > 0 {
		first, last := slots[0], slots[0]
		for _, slot := range slots {
			first, last = min(first, slot), max(last, slot)
		}
		b.span = slotSpan{begin: first, end: last + 1}
	}
}

// slotSpan is a run of slots that contains all candidates of a batch. If the candidates are
// neighbours in the directory, one scan of the span, without a branch for
// each slot, replaces a check of each candidate. It is only a short cut:
// a debt or a pin in the span may belong to another object.
type slotSpan struct{ begin, end uint32 }

// tooLong reports whether scanning the span would take longer than checking
// the candidates.
func (s slotSpan) tooLong() bool { return s.end-s.begin > maxCandidates }

// settledBy reports whether the reader is known to owe nothing in the span.
// As in openDebts, done is read before owed.
func (s slotSpan) settledBy(a *account) bool {
	if s.tooLong() {
		return false
	}
	ledger, owed := a.ledger[s.begin:s.end], a.owed[s.begin:s.end]
	var lags uint32
	for i := range ledger {
		done := ledger[i].done.Load()
		lags |= atomic.LoadUint32(&owed[i]) - done
	}
	return lags == 0
}

// unpinnedBy reports whether the reader is known to have no pin in the span.
func (s slotSpan) unpinnedBy(a *account) bool {
	if s.tooLong() {
		return false
	}
	var pins uint32
	ledger := a.ledger[s.begin:s.end]
	for i := range ledger {
		pins |= ledger[i].pin.Load()
	}
	return pins == 0
}
