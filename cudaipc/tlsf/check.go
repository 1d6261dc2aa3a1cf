package tlsf

import "fmt"

// The invariants that Check names. A broken one may break others.
const (
	InvariantOverlap    = "overlap"         // each block begins where the one before it ends
	InvariantLost       = "lost bytes"      // the blocks add up to the memory
	InvariantNeighbours = "neighbour links" // blocks link to those beside them, and back
	InvariantCoalesced  = "coalesced"       // no two free blocks side by side
	InvariantUsed       = "blocks in use"   // found by their offset, and counted
	InvariantLists      = "lists"           // each free block is in the list of its class, once
	InvariantMaps       = "bit maps"        // a bit is set if its list has blocks
	InvariantRecords    = "lost record"     // every record is a block or spare
)

// Violation is one broken invariant.
type Violation struct {
	Invariant string // one of the Invariant constants
	Detail    string
}

func (v Violation) String() string { return v.Invariant + ": " + v.Detail }

// maxViolations bounds the result of Check: one cause can break every block.
const maxViolations = 100

// Check compares the allocator's redundant records, and returns the contradictions: none, unless
// there is a bug. Its time grows with the number of blocks.
func (a *Allocator) Check() []Violation {
	c := &checker{Allocator: a, seen: make([]bool, len(a.blocks))}
	c.checkBlocks()
	c.checkLists()
	c.checkRecords()
	return c.found
}

type checker struct {
	*Allocator
	seen         []bool // blocks met in memory
	free, listed int
	found        []Violation
}

func (c *checker) report(invariant, format string, args ...any) {
	if len(c.found) < maxViolations {
		c.found = append(c.found, Violation{Invariant: invariant, Detail: fmt.Sprintf(format, args...)})
	}
}

// firstBlock returns the block at offset 0.
func (c *checker) firstBlock() ref {
	for r, b := range c.blocks {
		if r != 0 && b.size > 0 && b.before == none && b.at == 0 {
			return ref(r)
		}
	}
	return none
}

// checkBlocks checks the blocks in the order of their offsets.
func (c *checker) checkBlocks() {
	var end, inUse uint32
	used, before := 0, none
	for r := c.firstBlock(); r != none; r = c.blocks[r].behind {
		if int(r) >= len(c.blocks) || c.seen[r] {
			c.report(InvariantNeighbours, "block %d is met twice, or is none", r)
			break
		}
		c.seen[r] = true
		b := &c.blocks[r]
		if b.at != end || b.size == 0 || b.size > c.size-end {
			c.report(InvariantOverlap, "block %d has %d granules at %d, the one before it ends at %d of %d", r, b.size, b.at, end, c.size)
		}
		if b.before != before {
			c.report(InvariantNeighbours, "block %d is behind %d and links to %d", r, before, b.before)
		}
		if b.free {
			c.free++
			if before != none && c.blocks[before].free {
				c.report(InvariantCoalesced, "blocks %d and %d are both free", before, r)
			}
		} else {
			used++
			inUse += b.size
			if found, ok := c.used[b.at]; !ok || found != r {
				c.report(InvariantUsed, "block %d at %d is found as %d", r, b.at, found)
			}
		}
		before, end = r, b.at+b.size
	}
	if end != c.size {
		c.report(InvariantLost, "the blocks end at %d of %d granules", end, c.size)
	}
	if used != len(c.used) || inUse != c.usedUnits {
		c.report(InvariantUsed, "%d blocks of %d granules are in use, counted are %d of %d", used, inUse, len(c.used), c.usedUnits)
	}
}

// checkLists checks all lists.
func (c *checker) checkLists() {
	for fl := range c.heads {
		for sl, head := range c.heads[fl] {
			if has := c.secondMap[fl]>>sl&1 != 0; has != (head != none) {
				c.report(InvariantMaps, "list %d.%d begins with %d, the map says that it has blocks: %t", fl, sl, head, has)
			}
			c.checkList(fl, sl)
		}
		if has := c.firstMap>>fl&1 != 0; has != (c.secondMap[fl] != 0) {
			c.report(InvariantMaps, "power %d has lists %b, the map says that it has some: %t", fl, c.secondMap[fl], has)
		}
	}
	if c.free != c.listed {
		c.report(InvariantLists, "%d blocks are free, %d are listed", c.free, c.listed)
	}
}

func (c *checker) checkList(fl, sl int) {
	prev := none
	for r := c.heads[fl][sl]; r != none; r = c.blocks[r].next {
		if c.listed++; int(r) >= len(c.blocks) || c.listed > len(c.blocks) {
			c.report(InvariantLists, "list %d.%d has no end", fl, sl)
			return
		}
		b := &c.blocks[r]
		if gotFl, gotSl := classOf(b.size); !b.free || !c.seen[r] || gotFl != fl || gotSl != sl || b.prev != prev {
			c.report(InvariantLists, "block %d of %d granules is in list %d.%d behind %d; it links to %d; free: %t", r, b.size, fl, sl, prev, b.prev, b.free)
		}
		prev = r
	}
}

// checkRecords checks that each record is a block or spare.
func (c *checker) checkRecords() {
	blocks, spare := 0, 0
	for _, met := range c.seen {
		if met {
			blocks++
		}
	}
	for r := c.spare; r != none && spare <= len(c.blocks); r = c.blocks[r].next {
		spare++
	}
	if blocks+spare+1 != len(c.blocks) {
		c.report(InvariantRecords, "%d blocks and %d spare ones, of %d", blocks, spare, len(c.blocks)-1)
	}
}
