package shmstore

import (
	"math/bits"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// maxCandidates bounds the objects looked at in one step of an eviction, and
// with it the time between two looks at whether enough is free. It is the
// number of bits in a mask of candidates.
const maxCandidates = 64

// batch is the candidates of one step. Bit i of a mask stands for slots[i].
//
// A step works reader by reader, not object by object: neighbours in age are
// mostly neighbours in the directory, so that one cache line of a ledger
// serves eight candidates.
type batch struct {
	slots [maxCandidates]uint32
}

// bitsOf iterates over the positions of the bits that are set in mask.
func bitsOf(mask uint64) func(yield func(i int) bool) {
	return func(yield func(i int) bool) {
		for ; mask != 0; mask &= mask - 1 {
			if !yield(bits.TrailingZeros64(mask)) {
				return
			}
		}
	}
}

// makeRoom evicts until an object of size bytes can be placed, and places it.
// It fails after a whole pass from the oldest object to the youngest that
// freed nothing; every pass before freed something, so it ends.
func (s *Store) makeRoom(size int) (slot uint32, ok bool) {
	for {
		freed := false
		next, more := s.ring.Oldest()
		for more {
			var freedBytes uint64
			next, more, freedBytes = s.step(next, s.geo.maxObject)
			if freedBytes == 0 {
				continue
			}
			freed = true
			if slot, ok = s.tryPlace(size); ok {
				return slot, true
			}
		}
		if !freed {
			return 0, false
		}
	}
}

// evictAll makes one pass and returns the bytes it freed; it ends early once
// these reach target.
func (s *Store) evictAll(target uint64) (freedBytes uint64) {
	next, more := s.ring.Oldest()
	for more && freedBytes < target {
		var n uint64
		next, more, n = s.step(next, target-freedBytes)
		freedBytes += n
	}
	return freedBytes
}

// step looks at up to maxCandidates chunks from first on, in order of age, and
// frees those that may go. It stops looking once the candidates add up to
// target bytes. It returns the chunk to go on with, if there is one.
func (s *Store) step(first ringbuf.Chunk, target uint64) (next ringbuf.Chunk, more bool, freedBytes uint64) {
	var live, aborted, seen uint64
	n := 0
	for next, more = first, true; more && n < maxCandidates && seen < target; n++ {
		slot := next.Tag
		s.scratch.slots[n] = slot
		switch stateOf(s.lines[slot].word.load()) {
		case stateLive:
			live |= 1 << n
			seen += next.Size
		case stateAborted:
			aborted |= 1 << n
			seen += next.Size
		case stateFree, stateClosing: // still being filled; closing lasts no longer than a step
		}
		next, more = s.ring.Next(next)
	}
	freed, freedBytes := s.evict(live, aborted)
	if s.strict && bits.OnesCount64(freed) < n {
		more = false // what is left blocks all that is younger
	}
	return next, more, freedBytes
}

// evictSlot frees one object if it may go.
func (s *Store) evictSlot(slot uint32) {
	s.scratch.slots[0] = slot
	s.evict(1, 0)
}

// evict frees the live candidates that nobody holds, and the aborted ones,
// and returns their bytes.
//
// This is the writer's half of the protocol in doc.go, and the order of its
// looks matters. Debts before closing: none can be added to a settled object
// from outside this process, and the writer is here. Pins after closing: a
// reader that raised its pin before is seen here, and one that raises it later
// sees the closing word. Local debts once more after that: a pin that is gone
// by now may have been shared before it went.
func (s *Store) evict(live, aborted uint64) (freed, freedBytes uint64) {
	settled := live &^ s.unsettled(live)
	s.setState(settled, stateClosing)
	if s.whileClosing != nil {
		s.whileClosing()
	}
	held := s.pinned(settled)
	held |= s.unsettledBy(s.accounts[LocalReader], settled&^held)
	s.counters.pinConflicts += uint64(bits.OnesCount64(held))

	freed = settled&^held | aborted
	if s.strict {
		freed &= 1<<bits.TrailingZeros64(^freed) - 1 // none behind one that stays
	}
	s.setState(settled&^freed, stateLive)
	for i := range bitsOf(freed & aborted) {
		freedBytes += s.freeAborted(s.scratch.slots[i])
	}
	for i := range bitsOf(freed &^ aborted) {
		freedBytes += s.free(s.scratch.slots[i])
		s.counters.evicted++
	}
	return freed, freedBytes
}

// unsettled returns the candidates that some reader has not settled.
func (s *Store) unsettled(candidates uint64) (held uint64) {
	for _, a := range s.accounts {
		held |= s.unsettledBy(a, candidates&^held)
	}
	if s.quarantine == 0 {
		return held
	}
	// What a quarantined reader says of its debts is worth nothing.
	for i := range bitsOf(candidates &^ held) {
		if s.mayHold(s.scratch.slots[i])&s.quarantine != 0 {
			held |= 1 << i
		}
	}
	return held
}

// unsettledBy returns the candidates that one reader has not settled, and puts
// it in quarantine if it has settled too much.
func (s *Store) unsettledBy(a *account, candidates uint64) (held uint64) {
	for i := range bitsOf(candidates) {
		switch lag := a.lag(s.scratch.slots[i]); {
		case lag > 0:
			held |= 1 << i
		case lag < 0:
			s.quarantine |= Readers(a.id)
		}
	}
	return held
}

// pinned returns the candidates that some reader has pinned.
func (s *Store) pinned(candidates uint64) (held uint64) {
	for _, a := range s.accounts {
		for i := range bitsOf(candidates) {
			if a.ledger[s.scratch.slots[i]].pin.Load() != 0 {
				held |= 1 << i
			}
		}
	}
	return held
}

// setState stores a new state, with the generation as it is. The store is
// sequentially consistent: it is the fence between closing a slot and looking
// at its pins.
func (s *Store) setState(candidates uint64, to state) {
	for i := range bitsOf(candidates) {
		slot := s.scratch.slots[i]
		s.lines[slot].word.store(wordOf(s.records[slot].gen, to))
	}
}

// freeAborted takes the debts of a reservation back and frees it.
func (s *Store) freeAborted(slot uint32) (freedBytes uint64) {
	for id := range (s.records[slot].charged & s.present).All() {
		owed := &s.columns[id][slot]
		relaxedStore32(owed, *owed-1)
	}
	s.counters.aborted++
	return s.free(slot)
}

// free empties a slot. Nobody may hold it.
func (s *Store) free(slot uint32) (freedBytes uint64) {
	rec := &s.records[slot]
	s.unname(rec)
	s.lines[slot].word.storeRelaxed(wordOf(0, stateFree))
	freedBytes = rec.chunk.Size
	if invariantsOn {
		poison(s.arena[rec.chunk.Addr:][:freedBytes])
	}
	if err := s.ring.Release(rec.chunk); err != nil {
		panic("shmstore: the directory and the ring disagree: " + err.Error())
	}
	*rec = record{}
	s.freeSlots = append(s.freeSlots, slot)
	s.inUse--
	return freedBytes
}

// poison makes a use after release show.
func poison(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
}
