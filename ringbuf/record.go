package ringbuf

// kind is the kind of a record.
type kind uint8

const (
	spareRecord kind = iota // unused, in the spare list
	sentinel                // the first record, never anything else
	liveChunk
	gapSpan
	vacantSpan // between vacate and coalesce
)

// none is the index of the sentinel. It ends every list, and stands for both ends of the
// buffer: it is never a gap, so no gap merges with it, and its span is
// 0, so no chunk fits in it.
const none uint32 = 0

// record is the writer's private state of one span. Records refer to each
// other by index, so that the garbage collector follows no pointers.
type record struct {
	off  uint64 // first byte of the span; a chunk's header stands here
	span uint64 // bytes, padding included
	id   uint64 // of a live chunk, else 0
	size uint64 // payload bytes of a live chunk

	// Neighbours by address, of every span. The list closes over the
	// sentinel: its right is the first span, its left the last.
	left, right uint32

	// Neighbours by age of a live chunk: prev is older. The list closes over
	// the sentinel: its next is the oldest chunk, its prev the youngest.
	// A gap uses the same fields for its bin, a spare record for the spare
	// list; those lists end in none.
	prev, next uint32

	tag  uint32
	kind kind
}

// end is the offset behind the span.
func (c *record) end() uint64 { return c.off + c.span }

// records holds the record of every span and the spare ones. The first is the
// sentinel.
type records []record

// linkBefore puts the span ref in front of the span right, by address.
func (rs records) linkBefore(right, ref uint32) {
	left := rs[right].left
	rs[ref].left, rs[ref].right = left, right
	rs[left].right = ref
	rs[right].left = ref
}

// unlinkSpan takes the span ref out of the address list.
func (rs records) unlinkSpan(ref uint32) {
	left, right := rs[ref].left, rs[ref].right
	rs[left].right = right
	rs[right].left = left
}

// linkYoungest makes ref the youngest chunk.
func (rs records) linkYoungest(ref uint32) {
	youngest := rs[none].prev
	rs[ref].prev, rs[ref].next = youngest, none
	rs[youngest].next = ref
	rs[none].prev = ref
}

// unlinkAge takes the chunk ref out of the age list.
func (rs records) unlinkAge(ref uint32) {
	prev, next := rs[ref].prev, rs[ref].next
	rs[prev].next = next
	rs[next].prev = prev
}

func (rs records) oldest() uint32   { return rs[none].next }
func (rs records) youngest() uint32 { return rs[none].prev }

// takeRecord returns an unused record. It may move all records, which invalidates earlier
// pointers and slices. newGeometry bounds their number.
func (r *Ring) takeRecord() uint32 {
	if ref := r.spare; ref != none {
		r.spare = r.recs[ref].next
		return ref
	}
	r.recs = append(r.recs, record{})
	return uint32(len(r.recs) - 1)
}

// dropRecord frees a record that is in no list any more.
func (r *Ring) dropRecord(ref uint32) {
	r.recs[ref].kind, r.recs[ref].next = spareRecord, r.spare
	r.spare = ref
}
