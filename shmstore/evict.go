package shmstore

import (
	"math"
	"math/bits"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// makeSpace evicts until an object of size bytes can be placed, and places it.
// It fails after a whole pass from the oldest object to the youngest that
// freed nothing; every pass before freed something, so it ends.
//
// Large objects are spared as long as others can go: all that they have of the arena is a slot and a cache line each.
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

// A store that reuses looks at more objects than it gives out reservations: if it looked
// at as many, those that nobody holds would pile up among others that stay.
const (
	candidatesPerReservation = 2
	extraCandidates          = 6
)

// reclaim frees objects that may go, in a store that reuses, although there may be
// room: the room that they had is in the caches of processors, and what is next in
// turn is not. It goes on where it was the last time.
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
			return // all were looked at, or the hand was on one that is gone
		}
	}
}

// evictBatch looks at up to limit chunks from first on, maxCandidates at the most, in
// order of age, and frees those that may go. It stops looking once the candidates
// add up to target bytes. It returns the chunk to go on with, if there is one. Large
// objects that may still be read are candidates only if that is wanted.
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
		case stateFree, stateClosing: // still being filled; closing lasts no longer than a step
		}
	}
	if more = n < len(chunks); more {
		next = chunks[n]
	}
	_, freedBytes = s.evict(live, aborted)
	return next, more, freedBytes
}

// evictSlot frees one object, or one aborted reservation, if it may go.
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

// freeCandidates empties the slots of candidates that nobody holds, and returns their
// bytes.
func (s *Store) freeCandidates(candidates, aborted uint64) (freedBytes uint64) {
	chunks := s.scratch.chunks[:0] // written behind where it is read
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

// vacate empties a slot.
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

// unsettled returns the candidates that some reader has not settled.
func (s *Store) unsettled(candidates uint64) (held uint64) {
	for _, a := range s.accounts {
		held |= s.unsettledBy(a, candidates&^held)
	}
	if s.quarantine == 0 {
		return held
	}
	// What a quarantined reader says of its debts is worth nothing.
	for i, slot := range s.scratch.upTo(candidates) {
		if s.mayHold(slot)&s.quarantine != 0 {
			held |= 1 << i
		}
	}
	return held & candidates
}

// unsettledBy returns the candidates that one reader has not settled, and puts
// it in quarantine if it has settled too much.
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

// pinned returns the candidates that some reader has pinned.
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

// startClosing stores closing for the candidates. All of them must be seen by
// every reader before the first pin is looked at. Where the last store is a
// fence for those before it, they need none of their own: see lastStoreFences.
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

// uncharge takes the debts of an aborted reservation back.
func (s *Store) uncharge(slot uint32) {
	for id := range (s.records[slot].charged & s.present).All() {
		owed := &s.columns[id][slot]
		relaxedStore32(owed, *owed-1)
	}
}

// poison makes a use after release show.
func poison(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
}
