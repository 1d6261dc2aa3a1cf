package pool

import (
	"fmt"
	"slices"

	"github.com/omnibus-runtime/omnibus/cudaipc/tlsf"
)

// The invariants that Check names. Those of an arena's ranges have the names of package tlsf, after
// "ranges: ".
const (
	InvariantSlots   = "slots"         // a slot is free or in use, and counted once
	InvariantWords   = "words"         // no word is ahead of its slot
	InvariantBounds  = "chunk bounds"  // chunks lie in an arena of the pool
	InvariantOverlap = "chunk overlap" // no two chunks share a byte
	InvariantArenas  = "arenas"        // they add up, within the bound, and have as many chunks as the pool
	rangesPrefix     = "ranges: "
)

// Violation is one broken invariant.
type Violation struct {
	Invariant string // one of the Invariant constants, or "ranges: " and one of package tlsf
	Detail    string
}

func (v Violation) String() string { return v.Invariant + ": " + v.Detail }

type checker struct{ found []Violation }

func (c *checker) report(invariant, format string, args ...any) {
	const maxViolations = 100
	if len(c.found) < maxViolations {
		c.found = append(c.found, Violation{Invariant: invariant, Detail: fmt.Sprintf(format, args...)})
	}
}

// Check compares the pool's redundant records, and returns the contradictions: none, unless there
// is a bug.
func (p *Pool) Check() []Violation {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	c := &checker{}
	c.checkSlots(p.slots)
	inArena := make(map[*arena][]chunk)
	for number, known := range p.chunks {
		if used := p.slots.state[number] != slotFree; used != (known.arena != nil) {
			c.report(InvariantSlots, "slot %d is in use: %t, and has a chunk: %t", number, used, known.arena != nil)
		}
		if known.arena != nil {
			inArena[known.arena] = append(inArena[known.arena], known)
		}
	}
	var total int64
	for _, a := range p.arenas {
		total += a.memory.Bytes()
		c.checkArena(a, inArena[a])
		delete(inArena, a)
	}
	if len(inArena) > 0 || total != p.totalBytes || len(p.arenas) == 0 || len(p.arenas) > 1 && total > max(p.opts.MaxBytes, p.arenas[0].memory.Bytes()) {
		c.report(InvariantArenas, "%d arenas have %d bytes, %d are counted, the most is %d; chunks lie in %d others", len(p.arenas), total, p.totalBytes, p.opts.MaxBytes, len(inArena))
	}
	return c.found
}

// checkArena checks the chunks of one arena.
func (c *checker) checkArena(a *arena, chunks []chunk) {
	for _, v := range a.ranges.Check() {
		c.report(rangesPrefix+v.Invariant, "arena %d: %s", a.number, v.Detail)
	}
	slices.SortFunc(chunks, func(a, b chunk) int { return int(a.offset - b.offset) })
	var end, used int64
	for _, known := range chunks {
		if known.offset < 0 || known.bytes > a.memory.Bytes()-known.offset {
			c.report(InvariantBounds, "%d bytes at %d are not in arena %d of %d", known.bytes, known.offset, a.number, a.memory.Bytes())
		}
		if known.offset < end {
			c.report(InvariantOverlap, "the chunk at %d of arena %d begins before %d, where another one ends", known.offset, a.number, end)
		}
		granules := max(known.bytes+tlsf.Granule-1, tlsf.Granule) / tlsf.Granule
		end = known.offset + granules*tlsf.Granule
		used += granules * tlsf.Granule
	}
	if used != a.ranges.UsedBytes() || len(chunks) != a.ranges.Blocks() {
		c.report(InvariantArenas, "%d chunks of %d bytes are known in arena %d, in use are %d of %d", len(chunks), used, a.number, a.ranges.Blocks(), a.ranges.UsedBytes())
	}
}

// Check is [Pool.Check] for the exports' slots.
func (e *Exports) Check() []Violation {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	c := &checker{}
	c.checkSlots(e.slots)
	for number, release := range e.kept {
		if release != nil && !e.slots.state[number].inUse() {
			c.report(InvariantSlots, "slot %d is not in use and has a release function", number)
		}
	}
	return c.found
}

// checkSlots checks the states of the slots, and the words.
func (c *checker) checkSlots(s *slots) {
	listed := make([]bool, len(s.state))
	for want, numbers := range map[slotState][]uint32{slotFree: s.free, slotLate: s.late} {
		for _, number := range numbers {
			if s.state[number] != want || listed[number] {
				c.report(InvariantSlots, "slot %d has state %d and is listed with %d; listed before: %t", number, s.state[number], want, listed[number])
			}
			listed[number] = true
		}
	}
	for number, state := range s.state {
		used := state.inUse()
		if used == listed[number] {
			c.report(InvariantSlots, "slot %d is in use: %t, and listed as free: %t", number, used, listed[number])
		}
		p := s.piece(uint32(number))
		if used && p.Generation == 0 {
			c.report(InvariantSlots, "slot %d is in use with generation 0", number)
		}
		ready, fault := p.Ready.Host.Load(), p.Fault.Host.Load()
		if ahead(ready, p.Generation) || fault != 0 && ahead(fault, p.Generation) {
			c.report(InvariantWords, "slot %d has generation %d, ready for %d, failed in %d", number, p.Generation, ready, fault)
		}
	}
}

// ahead compares with wraparound.
func ahead(word, generation uint32) bool { return int32(word-generation) > 0 }
