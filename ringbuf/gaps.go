package ringbuf

import "math/bits"

// The allocator. Chunks are cut from the current gap,
// front to back, until it is too small; freed neighbours extend it. All other
// gaps are in bins by size. With Options.Reuse the current gap is put into its bin before
// each chunk is cut.

// binProbes bounds the search of a bin whose members may be too small, while
// there are larger gaps that need no search.
const binProbes = 8

// gapBins holds all gaps but the current one, by the power of two of their granules:
// bin b has the gaps of 2^b up to 2^(b+1)-1 granules. A gap that is not whole
// granules, at the end of the buffer, counts the last one as if it were.
type gapBins struct {
	heads    [64]uint32
	bound    [64]uint64 // no gap of the bin has more bytes; some may have fewer
	nonEmpty uint64     // bit b: heads[b] is not none
}

func (r *Ring) binOf(span uint64) int { return bits.Len64(r.geo.granules(span)) - 1 }

// addGap makes a gap that is in no bin the current gap if there is none, and else adds
// it to its bin.
func (r *Ring) addGap(gap uint32) {
	if r.current == none {
		r.current = gap
	} else {
		r.addToBin(gap)
	}
}

// removeGap removes a gap from its bin, or, if it is the current gap, leaves none current.
func (r *Ring) removeGap(gap uint32) {
	if r.current == gap {
		r.current = none
	} else {
		r.removeFromBin(gap)
	}
}

func (r *Ring) addToBin(gap uint32) {
	span := r.recs[gap].span
	b := r.binOf(span)
	head := r.bins.heads[b]
	r.recs[gap].prev, r.recs[gap].next = none, head
	if head != none {
		r.recs[head].prev = gap
	}
	r.bins.heads[b] = gap
	r.bins.bound[b] = max(r.bins.bound[b], span)
	r.bins.nonEmpty |= 1 << b
}

func (r *Ring) removeFromBin(gap uint32) {
	prev, next := r.recs[gap].prev, r.recs[gap].next
	if next != none {
		r.recs[next].prev = prev
	}
	if prev != none {
		r.recs[prev].next = next
		return
	}
	b := r.binOf(r.recs[gap].span)
	r.bins.heads[b] = next
	if next == none {
		r.bins.bound[b] = 0
		r.bins.nonEmpty &^= 1 << b
	}
}

// nextGap replaces a current gap that is too small by one that is not, and
// returns it. It returns none, and changes nothing, only if there is no such
// gap.
func (r *Ring) nextGap(need uint64) uint32 {
	gap := r.findGap(need)
	if gap == none {
		return none
	}
	r.removeFromBin(gap)
	if r.current != none {
		r.addToBin(r.current)
	}
	r.current = gap
	return gap
}

// findGap prefers a gap of need's own bin, to keep large gaps large, but checks
// only a few of them while a larger bin has one that surely fits. It
// returns none only if no gap fits.
func (r *Ring) findGap(need uint64) uint32 {
	b := r.binOf(need)
	mayFit := need <= r.bins.bound[b]
	if mayFit {
		if gap := r.probe(b, need, binProbes); gap != none {
			return gap
		}
	}
	if larger := r.bins.nonEmpty &^ (2<<b - 1); larger != 0 {
		return r.bins.heads[bits.TrailingZeros64(larger)]
	}
	if mayFit {
		return r.search(b, need)
	}
	return none
}

// probe returns the first of up to limit members of bin b with at least need
// bytes, or none.
func (r *Ring) probe(b int, need uint64, limit int) uint32 {
	gap := r.bins.heads[b]
	for range limit {
		if gap == none || r.recs[gap].span >= need {
			return gap
		}
		gap = r.recs[gap].next
	}
	return none
}

// search is probe without a limit. A search without success stores the exact bound of the
// bin, so that the next one costs nothing until a gap of the bin grows.
func (r *Ring) search(b int, need uint64) uint32 {
	var most uint64
	for gap := r.bins.heads[b]; gap != none; gap = r.recs[gap].next {
		if r.recs[gap].span >= need {
			return gap
		}
		most = max(most, r.recs[gap].span)
	}
	r.bins.bound[b] = most
	return none
}

// largestGap returns the most bytes that Allocate could use in one piece. It
// walks one bin.
func (r *Ring) largestGap() uint64 {
	largest := r.recs[r.current].span
	if r.bins.nonEmpty == 0 {
		return largest
	}
	top := bits.Len64(r.bins.nonEmpty) - 1
	for gap := r.bins.heads[top]; gap != none; gap = r.recs[gap].next {
		largest = max(largest, r.recs[gap].span)
	}
	return largest
}

// coalesce turns a span that is in no list but the address list into a gap,
// joined with the gaps beside it. For none it does nothing.
func (r *Ring) coalesce(ref uint32) {
	if ref == none {
		return
	}
	r.recs[ref].kind = gapSpan
	left, right := r.recs[ref].left, r.recs[ref].right
	leftGap, rightGap := r.recs[left].kind == gapSpan, r.recs[right].kind == gapSpan
	if leftGap && !rightGap && r.growsInPlace(left, r.recs[ref].span) {
		r.absorb(left, ref) // the usual case when chunks are released in order
		return
	}
	if leftGap {
		r.removeGap(left)
		r.absorb(left, ref)
		ref = left
	}
	if rightGap {
		r.removeGap(right)
		r.absorb(ref, right)
	}
	r.addGap(ref)
}

// growsInPlace reports whether a gap that grows by so many bytes stays in its bin, and
// raises the bound of the bin for it.
func (r *Ring) growsInPlace(gap uint32, grows uint64) bool {
	if gap == r.current {
		return true
	}
	span := r.recs[gap].span
	b := r.binOf(span + grows)
	if r.binOf(span) != b {
		return false
	}
	r.bins.bound[b] = max(r.bins.bound[b], span+grows)
	return true
}

// absorb joins a span with the one behind it, and drops the record of the latter.
func (r *Ring) absorb(ref, behind uint32) {
	recs := r.recs
	recs[ref].span += recs[behind].span
	recs.unlinkSpan(behind)
	r.dropRecord(behind)
}
