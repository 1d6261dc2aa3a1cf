package shmstore

import (
	"math"
	"math/bits"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// makeSpace evicts until a slot and size bytes can be allocated, and allocates them.
// It fails after a whole pass from the oldest object to the youngest that
// freed nothing; every pass before freed something, so it ends.
//
// Large objects are evicted last: each takes only a slot and a cache line of the arena.
func (s *Store) makeSpace(size int) (slot uint32, ok bool) {
	for {
		freed := false
		next, more := s.ring.Oldest()
		for more {
			var freedBytes uint64
			next, more, freedBytes = s.evictBatch(next, maxCandidates, s.inArena, false)
			if freedBytes == 0 {
				continue
			}
			freed = true
			if slot, ok = s.tryAllocateSlot(size); ok {
				return slot, true
			}
		}
		if !freed {
			break
		}
	}
	for s.evictLarge() {
		if slot, ok = s.tryAllocateSlot(size); ok {
			return slot, true
		}
	}
	return 0, false
}

// A store with Reuse checks more objects than it grants reservations: if it checked as
// many, settled objects would pile up among objects that are held.
const (
	candidatesPerReservation = 2
	extraCandidates          = 6
)

// reclaim evicts settled objects in a store with Reuse, although there may be free
// space: the space of those objects is in the caches of processors, and free space that was
// not used lately is not. It continues where the last call stopped.
func (s *Store) reclaim(n int) {
	if !s.reuse {
		return
	}
	for looks := candidatesPerReservation*n + extraCandidates; looks > 0; looks -= maxCandidates {
		first := s.nextReclaim
		if first == (ringbuf.Chunk{}) {
			first, _ = s.ring.Oldest()
		}
		s.nextReclaim, _, _ = s.evictBatch(first, min(looks, maxCandidates), math.MaxUint64, false)
		if s.nextReclaim == (ringbuf.Chunk{}) {
			return // all were checked, or the chunk to begin with is gone
		}
	}
}

// evictBatch checks up to limit chunks from first on, maxCandidates at the most, in
// order of age, and frees the settled and the aborted ones. It stops once the candidates
// add up to target bytes. It returns the chunk to continue with, if there is one. Live
// large objects are candidates only if large is true.
func (s *Store) evictBatch(first ringbuf.Chunk, limit int, target uint64, large bool) (next ringbuf.Chunk, more bool, freedBytes uint64) {
	chunks := s.scratch.chunks[:s.ring.Run(first, s.scratch.chunks[:limit+1])]
	var live, aborted, seen uint64
	n := 0
	for ; n < min(len(chunks), limit) && seen < target; n++ {
		slot := chunks[n].Tag
		s.scratch.slots[n] = slot
		ln := &s.lines[slot]
		switch stateOf(ln.word.load()) {
		case stateLive:
			if ln.isLarge() {
				if !large {
					continue
				}
				seen += s.objectBytes(slot)
			}
			live |= 1 << n
			seen += chunks[n].Size
		case stateAborted:
			aborted |= 1 << n
			seen += chunks[n].Size
		case stateFree, stateClosing: // still being filled; closing lasts no longer than evict
		}
	}
	if more = n < len(chunks); more {
		next = chunks[n]
	}
	_, freedBytes = s.evict(live, aborted)
	return next, more, freedBytes
}

// evictSlot frees one settled object, or one aborted reservation. It reports false if the
// object is held, or is still being filled.
func (s *Store) evictSlot(slot uint32) (gone bool) {
	s.scratch.slots[0], s.scratch.chunks[0] = slot, s.records[slot].chunk
	var freed uint64
	switch stateOf(s.lines[slot].word.load()) {
	case stateLive:
		freed, _ = s.evict(1, 0)
	case stateAborted:
		freed, _ = s.evict(0, 1)
	case stateFree, stateClosing: // still being filled
	}
	return freed != 0
}

// evict frees the live candidates that no reader holds, and the aborted ones,
// and returns them with their bytes.
//
// This is the writer's half of the protocol in doc.go, and the order of its
// reads matters. Debts before closing: only this process can add debts to a settled
// object, and its writer is in this function. Pins after closing: a pin raised before
// is seen here, and a reader that raises its pin later sees the closing word. Local debts
// once more after that: a pinned lease that is released by now may have been shared
// before.
func (s *Store) evict(live, aborted uint64) (freed, freedBytes uint64) {
	s.scratch.setSpan(live)
	settled := live &^ s.unsettled(live)
	s.startClosing(settled)
	if s.whileClosing != nil {
		s.whileClosing()
	}
	held := s.pinned(settled)
	held |= s.unsettledBy(s.accounts[LocalReader], settled&^held)
	s.counters.pinConflicts += uint64(bits.OnesCount64(held))

	freed = settled&^held | aborted
	s.reopen(settled &^ freed)
	return freed, s.freeCandidates(freed, aborted)
}

// freeCandidates empties the slots of candidates that no reader holds, and returns their
// bytes.
func (s *Store) freeCandidates(candidates, aborted uint64) (freedBytes uint64) {
	chunks := s.scratch.chunks[:0] // overwrites only chunks that were read before
	for i, slot := range s.scratch.upTo(candidates) {
		switch bit := uint64(1) << i; {
		case candidates&bit == 0:
			continue
		case aborted&bit != 0:
			s.uncharge(slot)
			s.counters.aborted++
		default:
			s.counters.evicted++
		}
		chunk := s.scratch.chunks[i]
		chunks = append(chunks, chunk)
		if invariantsOn {
			poison(s.arena[chunk.Addr:][:chunk.Size])
		}
		if s.lines[slot].isLarge() {
			freedBytes += s.releaseLarge(slot)
		} else {
			freedBytes += chunk.Size
		}
		s.vacate(slot)
	}
	if err := s.ring.ReleaseAll(chunks); err != nil {
		panic("shmstore: the directory and the ring disagree: " + err.Error())
	}
	return freedBytes
}

// vacate empties a slot, and frees the object's piece of a device.
func (s *Store) vacate(slot uint32) {
	rec := &s.records[slot]
	if int(slot) < len(s.pieces) && s.pieces[slot].device != nil {
		s.detachPiece(slot)
	}
	s.lines[slot].word.storeRelaxed(wordOf(0, stateFree))
	rec.gen, rec.charged = 0, 0
	s.freeSlots = append(s.freeSlots, slot)
	s.inUse--
}

// unsettled returns the candidates that at least one reader has not settled.
func (s *Store) unsettled(candidates uint64) (held uint64) {
	for _, a := range s.accounts {
		held |= s.unsettledBy(a, candidates&^held)
	}
	if s.quarantine == 0 {
		return held
	}
	// The ledger of a quarantined reader is not trusted: all it was charged for is held.
	for i, slot := range s.scratch.upTo(candidates) {
		if s.mayHold(slot)&s.quarantine != 0 {
			held |= 1 << i
		}
	}
	return held & candidates
}

// unsettledBy returns the candidates that one reader has not settled, and puts
// the reader in quarantine if it has settled more than it owed.
func (s *Store) unsettledBy(a *account, candidates uint64) (held uint64) {
	if s.scratch.span.settledBy(a) {
		return 0
	}
	for i, slot := range s.scratch.upTo(candidates) {
		lag := a.openDebts(slot)
		if lag == 0 || candidates>>i&1 == 0 {
			continue
		}
		if lag < 0 {
			s.quarantine |= Readers(a.id)
			continue
		}
		held |= 1 << i
	}
	return held
}

// pinned returns the candidates that at least one reader has pinned.
func (s *Store) pinned(candidates uint64) (held uint64) {
	for _, a := range s.accounts {
		if s.scratch.span.unpinnedBy(a) {
			continue
		}
		for i, slot := range s.scratch.upTo(candidates) {
			if a.ledger[slot].pin.Load() != 0 {
				held |= 1 << i
			}
		}
	}
	return held & candidates
}

// startClosing stores closing for the candidates. Every reader must see all of these
// stores before the first pin is read. If the last store is a fence for those before it,
// they need none of their own: see lastStoreFences.
func (s *Store) startClosing(candidates uint64) {
	last := bits.Len64(candidates) - 1
	for i, slot := range s.scratch.upTo(candidates) {
		word := &s.lines[slot].word
		closing := wordOf(s.records[slot].gen, stateClosing)
		switch {
		case candidates>>i&1 == 0:
		case i < last && lastStoreFences:
			word.storeRelaxed(closing)
		default:
			word.store(closing)
		}
	}
}

// reopen stores live again for candidates that stay.
func (s *Store) reopen(candidates uint64) {
	for i, slot := range s.scratch.upTo(candidates) {
		if candidates>>i&1 != 0 {
			s.lines[slot].word.store(wordOf(s.records[slot].gen, stateLive))
		}
	}
}

// uncharge removes the debts of an aborted reservation.
func (s *Store) uncharge(slot uint32) {
	for id := range (s.records[slot].charged & s.present).All() {
		owed := &s.columns[id][slot]
		relaxedStore32(owed, *owed-1)
	}
}

// poison overwrites freed bytes, so that a read after release finds no payload.
func poison(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
}
