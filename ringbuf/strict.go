package ringbuf

// The allocator of strict FIFO order: a plain ring. Chunks stand in age order
// going round, and room is what lies between the youngest chunk and start:
//
//	start <= youngest   |  room  |start.. oldest ... youngest|  room  |
//	start >  youngest   |... youngest|  room  |start.. oldest ........|
//
// start is where the oldest chunk begins, save when a ring that had run empty
// wrapped for its first chunk: then start stays behind at the place where the
// last chunk before it ended, and the bytes skipped for the wrap are not room
// until that first chunk is released, as in any plain ring.

// region is a run of free bytes that strict order allows to be used.
type region struct {
	gap      uint32 // the gap it lies in
	off, end uint64
}

func (g region) size() uint64 { return g.end - g.off }

// maxRegions is the most regions there can be, in the order of their use.
const maxRegions = 3

// strictRegions lists the room. An empty ring goes on where it stopped; only a
// chunk that fits neither there nor in front of there starts it afresh.
func (r *Ring) strictRegions() [maxRegions]region {
	lead, end := r.geo.lead, r.geo.end
	first, youngest := r.recs[none].right, r.recs.youngest()
	if youngest == none {
		return [maxRegions]region{{first, r.start, end}, {first, lead, r.start}, {first, lead, end}}
	}
	y := &r.recs[youngest]
	if r.start > y.off {
		return [maxRegions]region{{y.right, y.end(), r.start}}
	}
	return [maxRegions]region{{y.right, y.end(), end}, {first, lead, r.start}}
}

// placeStrict returns a gap that begins where the next chunk must stand and
// has room for need, or none.
func (r *Ring) placeStrict(need uint64) uint32 {
	for i, room := range r.strictRegions() {
		if room.size() < need {
			continue
		}
		if i == maxRegions-1 {
			r.start = r.geo.lead
		}
		return r.splitGap(room.gap, room.off)
	}
	return none
}

// splitGap returns a gap that begins at off, which lies in gap.
func (r *Ring) splitGap(gap uint32, off uint64) uint32 {
	if r.recs[gap].off == off {
		return gap
	}
	ref := r.takeRecord()
	g := &r.recs[gap]
	r.recs[ref] = record{kind: gapSpan, off: off, span: g.end() - off}
	g.span = off - g.off
	r.recs.linkBefore(g.right, ref)
	return ref
}

// largestStrict returns the most bytes that strict order allows to be used in
// one piece.
func (r *Ring) largestStrict() uint64 {
	var largest uint64
	for _, room := range r.strictRegions() {
		largest = max(largest, room.size())
	}
	return largest
}

// advanceStart moves start if the chunk about to be released is the oldest.
func (r *Ring) advanceStart(ref uint32) {
	if ref != r.recs.oldest() {
		return
	}
	if next := r.recs[ref].next; next != none {
		r.start = r.recs[next].off
	} else {
		r.start = r.recs[ref].end()
	}
}
