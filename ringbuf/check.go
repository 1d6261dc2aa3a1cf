package ringbuf

import "fmt"

// The invariants that Check names. A broken one may break others with it.
const (
	InvariantOverlap       = "overlap"         // no span reaches into the next or beyond the buffer
	InvariantLostBytes     = "lost bytes"      // spans leave no hole
	InvariantNeighbours    = "neighbour links" // the address list is whole and links back
	InvariantAdjacentGaps  = "adjacent gaps"   // two gaps side by side are one
	InvariantAlignment     = "bad alignment"   // payloads stand at multiples of Align
	InvariantPayload       = "payload bounds"  // a payload fills its span, save for padding
	InvariantHeader        = "header mismatch" // the header is the one that the writer wrote
	InvariantAddressIndex  = "address index"   // every live chunk is found by its address
	InvariantAgeLinks      = "age links"       // the age list is whole and links back
	InvariantIDOrder       = "id order"        // ids grow with age order and are all given out
	InvariantChunkCount    = "chunk count"     // as many chunks live as are counted
	InvariantFreeCount     = "free count"      // the gaps add up to the bytes counted free
	InvariantGapList       = "gap list"        // each gap is the current one or in one bin, and links back
	InvariantBinMembership = "bin membership"  // each gap in a bin is in that of its size
	InvariantBinBound      = "bin bound"       // no gap is larger than its bin's bound
	InvariantBinMap        = "bin map"         // the bit map of bins in use agrees with the bins
	InvariantRecords       = "lost record"     // every record is a span or spare, and only one of them
)

// Violation is one broken invariant, with the values found.
type Violation struct {
	Invariant string // one of the Invariant constants
	Detail    string
}

func (v Violation) String() string { return v.Invariant + ": " + v.Detail }

// maxViolations bounds Check's answer: one cause can break every record.
const maxViolations = 100

// Check compares the parts of the ring's bookkeeping with each other and
// with the headers in the buffer. It returns nil for a sound ring, and else
// the broken invariants, at most 100. It changes nothing, does not panic on
// broken bookkeeping, and is for the writer's goroutine like every method. Its
// time grows with the number of chunks and gaps.
func (r *Ring) Check() []Violation {
	c := checker{Ring: r, spans: make([]bool, len(r.recs)), listed: make([]bool, len(r.recs))}
	c.checkSpans()
	c.checkAges()
	c.checkBins()
	c.checkGapsListed()
	c.checkRecords()
	return c.found
}

// checker is one run of Check. Every walk along links is bounded by the number
// of records and stops at the first link it cannot follow.
type checker struct {
	*Ring
	found []Violation

	spans  []bool // by record: in the address list
	listed []bool // by record: the current gap or in a bin
}

func (c *checker) report(invariant, format string, args ...any) {
	if len(c.found) < maxViolations {
		c.found = append(c.found, Violation{Invariant: invariant, Detail: fmt.Sprintf(format, args...)})
	}
}

// exists reports whether ref is a record other than the sentinel.
func (c *checker) exists(ref uint32) bool { return ref != none && uint64(ref) < uint64(len(c.recs)) }

// checkSpans walks the address list, which must cover the buffer.
func (c *checker) checkSpans() {
	pos, prev := c.geo.lead, none
	var chunks int
	var free uint64
	for ref := c.recs[none].right; ref != none; ref = c.recs[ref].right {
		if !c.exists(ref) || c.spans[ref] {
			c.report(InvariantNeighbours, "after record %d comes record %d, which does not exist or came before", prev, ref)
			return
		}
		c.spans[ref] = true
		s := &c.recs[ref]
		if s.left != prev {
			c.report(InvariantNeighbours, "record %d follows record %d but links back to %d", ref, prev, s.left)
		}
		c.checkSeam(s.off, pos)
		switch {
		case s.kind == liveChunk:
			chunks++
			c.checkChunk(ref)
		case s.kind != gapSpan:
			c.report(InvariantRecords, "record %d covers bytes %d to %d but is neither chunk nor gap", ref, s.off, s.end())
		default:
			free += s.span
			if c.recs[prev].kind == gapSpan {
				c.report(InvariantAdjacentGaps, "the gaps before and after %d are not joined", s.off)
			}
		}
		pos, prev = s.end(), ref
	}
	c.checkSeam(c.geo.end, pos)
	if c.recs[none].left != prev {
		c.report(InvariantNeighbours, "record %d is last but the list's end links back to %d", prev, c.recs[none].left)
	}
	if chunks != c.live {
		c.report(InvariantChunkCount, "%d chunks stand in the buffer, %d are counted", chunks, c.live)
	}
	if free != c.free {
		c.report(InvariantFreeCount, "the gaps have %d bytes, %d are counted free", free, c.free)
	}
}

// checkSeam compares where a span begins with where the one before it ended.
func (c *checker) checkSeam(off, prevEnd uint64) {
	switch {
	case off > prevEnd:
		c.report(InvariantLostBytes, "bytes %d to %d are in no span", prevEnd, off)
	case off < prevEnd:
		c.report(InvariantOverlap, "bytes %d to %d are in two spans or behind the buffer", off, prevEnd)
	}
}

func (c *checker) checkChunk(ref uint32) {
	s := &c.recs[ref]
	addr := c.addr(ref)
	if addr%c.geo.align != 0 {
		c.report(InvariantAlignment, "the payload of chunk %d is at %d, not a multiple of %d", s.id, addr, c.geo.align)
	}
	if s.off > c.geo.end || s.span > c.geo.end-s.off || s.span < HeaderSize ||
		s.size == 0 || s.size > s.span-HeaderSize || s.span != c.geo.spanFor(s.size+HeaderSize, s.span) {
		c.report(InvariantPayload, "chunk %d has %d payload bytes in a span of %d at %d", s.id, s.size, s.span, s.off)
		return
	}
	if id, size := getHeader(c.buf[s.off:addr]); id != s.id || size != s.size {
		c.report(InvariantHeader, "the header at %d says chunk %d with %d bytes, the writer wrote chunk %d with %d", s.off, id, size, s.id, s.size)
	}
	if found := c.index.get(addr); found != ref {
		c.report(InvariantAddressIndex, "the payload of chunk %d at %d is record %d, the index says %d", s.id, addr, ref, found)
	}
}

// checkAges walks the age list, which must hold every chunk once.
func (c *checker) checkAges() {
	var chunks int
	var lastID uint64
	prev := none
	for ref := c.recs.oldest(); ref != none; ref = c.recs[ref].next {
		if !c.exists(ref) || c.recs[ref].kind != liveChunk || chunks == len(c.recs) {
			c.report(InvariantAgeLinks, "after record %d comes record %d, which is no chunk or came before", prev, ref)
			return
		}
		s := &c.recs[ref]
		if s.prev != prev {
			c.report(InvariantAgeLinks, "record %d follows record %d but links back to %d", ref, prev, s.prev)
		}
		if s.id <= lastID || s.id >= c.nextID {
			c.report(InvariantIDOrder, "chunk %d comes after chunk %d, and the next to be made is %d", s.id, lastID, c.nextID)
		}
		chunks++
		lastID, prev = s.id, ref
	}
	if c.recs.youngest() != prev {
		c.report(InvariantAgeLinks, "record %d is the last but the list's end links back to %d", prev, c.recs.youngest())
	}
	if chunks != c.live {
		c.report(InvariantAgeLinks, "the list has %d chunks, %d are counted", chunks, c.live)
	}
}

// checkBins checks every bin and the current gap.
func (c *checker) checkBins() {
	for b, head := range c.bins.heads {
		if used := c.bins.nonEmpty>>b&1 != 0; used != (head != none) {
			c.report(InvariantBinMap, "bin %d begins with record %d, but the map says in use: %t", b, head, used)
		}
		prev := none
		for gap := head; gap != none; gap = c.recs[gap].next {
			if !c.noteGap(gap, fmt.Sprintf("bin %d", b)) {
				break
			}
			s := &c.recs[gap]
			if s.prev != prev {
				c.report(InvariantGapList, "gap record %d follows %d in bin %d but links back to %d", gap, prev, b, s.prev)
			}
			if c.binOf(s.span) != b {
				c.report(InvariantBinMembership, "a gap of %d bytes is in bin %d, it belongs in %d", s.span, b, c.binOf(s.span))
			}
			if s.span > c.bins.bound[b] {
				c.report(InvariantBinBound, "a gap of %d bytes is in bin %d, whose bound says %d", s.span, b, c.bins.bound[b])
			}
			prev = gap
		}
	}
	if c.current != none {
		c.noteGap(c.current, "the current gap")
	}
}

// noteGap records that a gap was found in a place, and reports whether it is a gap that
// was not found before.
func (c *checker) noteGap(gap uint32, place string) bool {
	if !c.exists(gap) || c.recs[gap].kind != gapSpan || c.listed[gap] {
		c.report(InvariantGapList, "record %d in %s is no gap or is in two places", gap, place)
		return false
	}
	c.listed[gap] = true
	return true
}

// checkGapsListed reports gaps that are in no bin, which no allocation would find.
func (c *checker) checkGapsListed() {
	for ref := range c.recs {
		s := &c.recs[ref]
		if s.kind == gapSpan && !c.listed[ref] {
			c.report(InvariantGapList, "the gap of %d bytes at %d is not filed", s.span, s.off)
		}
	}
}

// checkRecords checks that every record is the sentinel, a span, or spare.
func (c *checker) checkRecords() {
	spare := make([]bool, len(c.recs))
	for ref := c.spare; ref != none; ref = c.recs[ref].next {
		if !c.exists(ref) || spare[ref] || c.recs[ref].kind != spareRecord {
			c.report(InvariantRecords, "the list of spare records leads to record %d, which is in use or came before", ref)
			break
		}
		spare[ref] = true
	}
	for ref := range c.recs {
		if inUse := ref == int(none) || c.spans[ref]; inUse == spare[ref] {
			c.report(InvariantRecords, "record %d is in use: %t, and spare: %t", ref, inUse, spare[ref])
		}
	}
}
