package shmstore

import (
	"fmt"
	"sync/atomic"
)

// The invariants of [Store.Check]. Those of the ring have the
// names of package ringbuf, after "ring: ".
const (
	InvariantSuperblock  = "superblock"      // the directory begins with the superblock that was written
	InvariantSlotState   = "slot state"      // the word agrees with the writer's record; no slot stays closing
	InvariantLine        = "directory line"  // a live line lies within its chunk
	InvariantGeneration  = "generation"      // every generation was granted, and none twice
	InvariantChunk       = "slot and chunk"  // every object has the chunk that names its slot, and every chunk an object
	InvariantFreeSlots   = "free slots"      // a slot is free or in use, and counted once
	InvariantSettled     = "settled slots"   // no reader owes anything for an empty slot
	InvariantOverdraft   = "overdraft"       // no reader has settled more than it owes
	InvariantCollected   = "collected debts" // done <= taken <= owed, for readers of this process
	InvariantReaderTable = "reader table"    // accounts, columns and sets agree
	InvariantCharges     = "charged readers" // only present readers are charged
	InvariantLarge       = "large objects"   // each has one segment, large enough, and the sums agree
	InvariantDevices     = "device pieces"   // the pieces in use are those that objects hold, each held once
	ringInvariantPrefix  = "ring: "
)

// maxViolations bounds the report on a badly damaged store.
const maxViolations = 100

// Violation is one broken invariant.
type Violation struct {
	Invariant string // one of the Invariant constants, or "ring: " and one of package ringbuf
	Detail    string
}

func (v Violation) String() string { return v.Invariant + ": " + v.Detail }

// Check compares all facts that the store keeps in two places, and returns the
// disagreements: none, unless there is a bug or a peer broke the rules. It checks
// every slot and reader, while readers may go on reading. Writer only.
func (s *Store) Check() []Violation {
	if s.arenaSegment.released {
		return nil
	}
	c := &checker{Store: s}
	c.checkSuperblock()
	c.checkSlots()
	c.checkFreeSlots()
	c.checkChunks()
	c.checkLarge()
	c.checkDevices()
	c.checkReaders()
	for _, v := range s.ring.Check() {
		c.report(ringInvariantPrefix+v.Invariant, "%s", v.Detail)
	}
	return c.found
}

type checker struct {
	*Store
	found []Violation
}

func (c *checker) report(invariant, format string, args ...any) {
	if len(c.found) < maxViolations {
		c.found = append(c.found, Violation{Invariant: invariant, Detail: fmt.Sprintf(format, args...)})
	}
}

func (c *checker) checkSuperblock() {
	sb := superblock{kind: kindDirectory, geometry: c.geo}
	if err := sb.verify(c.directory); err != nil {
		c.report(InvariantSuperblock, "%v", err)
	}
}

// checkSlots checks the word and the line of every slot.
func (c *checker) checkSlots() {
	seen := make(map[uint64]int, c.inUse)
	for slot := range c.lines {
		word := c.lines[slot].word.load()
		if slot >= len(c.records) || c.records[slot].gen == 0 {
			if word != wordOf(0, stateFree) {
				c.report(InvariantSlotState, "slot %d has no object, its word is %v(%d)", slot, stateOf(word), genOf(word))
			}
			continue
		}
		rec := &c.records[slot]
		if genOf(word) != rec.gen || stateOf(word) == stateClosing {
			c.report(InvariantSlotState, "slot %d has generation %d, its word is %v(%d)", slot, rec.gen, stateOf(word), genOf(word))
		}
		if other, twice := seen[rec.gen]; twice || rec.gen > c.generation {
			c.report(InvariantGeneration, "slots %d and %d have generation %d, the last given out is %d", slot, other, rec.gen, c.generation)
		}
		seen[rec.gen] = slot
		if absent := rec.charged &^ c.present; absent != 0 {
			c.report(InvariantCharges, "slot %d is charged to the absent readers %v", slot, absent)
		}
		if stateOf(word) == stateLive {
			c.checkLine(slot)
		}
	}
}

func (c *checker) checkLine(slot int) {
	rec, ln := &c.records[slot], &c.lines[slot]
	offset, size := atomic.LoadUint64(&ln.offset), atomic.LoadUint64(&ln.size)
	if offset == largeOffset {
		return // see checkLarge
	}
	if offset != rec.chunk.Addr || size > rec.chunk.Size {
		c.report(InvariantLine, "slot %d says %d bytes at %d, its chunk has %d at %d", slot, size, offset, rec.chunk.Size, rec.chunk.Addr)
	}
}

func (c *checker) checkFreeSlots() {
	free := make(map[uint32]bool, len(c.freeSlots))
	for _, slot := range c.freeSlots {
		switch {
		case int(slot) >= len(c.records), free[slot]:
			c.report(InvariantFreeSlots, "slot %d was never used or is listed twice", slot)
		case c.records[slot].gen != 0:
			c.report(InvariantFreeSlots, "slot %d is listed as free but has generation %d", slot, c.records[slot].gen)
		}
		free[slot] = true
	}
	if len(c.freeSlots)+c.inUse != len(c.records) {
		c.report(InvariantFreeSlots, "%d slots are free and %d in use, of %d", len(c.freeSlots), c.inUse, len(c.records))
	}
}

// checkChunks walks the ring from the oldest chunk on.
func (c *checker) checkChunks() {
	chunks := 0
	for chunk, ok := c.ring.Oldest(); ok; chunk, ok = c.ring.Next(chunk) {
		if chunks++; chunks > int(c.geo.slots) {
			c.report(InvariantChunk, "the ring has more chunks than there are slots")
			return
		}
		if int(chunk.Tag) >= len(c.records) || c.records[chunk.Tag].chunk != chunk {
			c.report(InvariantChunk, "%v is not that of slot %d, which it names", chunk, chunk.Tag)
		}
	}
	if chunks != c.inUse {
		c.report(InvariantChunk, "%d chunks for %d objects", chunks, c.inUse)
	}
}

func (c *checker) checkReaders() {
	var present ReaderSet
	for i, a := range c.accounts {
		present |= Readers(a.id)
		if i > 0 && c.accounts[i-1].id >= a.id {
			c.report(InvariantReaderTable, "account %d follows account %d", a.id, c.accounts[i-1].id)
		}
		if len(a.owed) != len(c.lines) || len(c.columns[a.id]) != len(c.lines) || &c.columns[a.id][0] != &a.owed[0] {
			c.report(InvariantReaderTable, "reader %d is charged in a column that is not its own", a.id)
			continue
		}
		c.checkAccount(a)
	}
	if present != c.present || c.quarantine&^present != 0 {
		c.report(InvariantReaderTable, "the accounts of %v are kept, %v are present and %v quarantined", present, c.present, c.quarantine)
	}
}

// checkAccount compares a reader's counts of owed, collected and settled debts.
func (c *checker) checkAccount(a *account) {
	for slot := range c.records {
		state := stateOf(c.lines[slot].word.load())
		if c.records[slot].gen != 0 && state != stateLive {
			continue // the holder of a reservation may be writing the account
		}
		// A reader may be at work: the smaller counter is read first.
		done := a.ledger[slot].done.Load()
		lag := int32(atomic.LoadUint32(&a.owed[slot]) - done)
		if lag < 0 {
			c.report(InvariantOverdraft, "reader %d has settled %d more than it owes for slot %d", a.id, -lag, slot)
		}
		if lag > 0 && c.records[slot].gen == 0 {
			c.report(InvariantSettled, "reader %d owes %d for slot %d, which has no object", a.id, lag, slot)
		}
		if a.reader == nil {
			continue
		}
		taken := a.reader.taken[slot].Load()
		owed := atomic.LoadUint32(&a.owed[slot])
		if int32(taken-done) < 0 || int32(owed-taken) < 0 {
			c.report(InvariantCollected, "reader %d owes %d for slot %d, has collected %d and settled %d", a.id, owed, slot, taken, done)
		}
	}
}
