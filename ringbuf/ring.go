package ringbuf

import (
	"errors"
	"fmt"
)

var errStale = errors.New("the chunk was released before")

// Chunk names one allocation of one ring. It is a plain value: copying it
// shares nothing and holding it keeps nothing alive.
type Chunk struct {
	ID   uint64 // counts up from 1, never used twice
	Addr uint64 // offset of the payload's first byte in the buffer
	Size uint64 // payload bytes
	Tag  uint32 // the caller's own value, as given to Allocate
}

// String gives the form used in error messages.
func (c Chunk) String() string {
	return fmt.Sprintf("chunk %d (%d bytes at %d)", c.ID, c.Size, c.Addr)
}

// Ring allocates the bytes of one buffer. Its methods are for the writer, one
// goroutine at a time; readers use none of them (see the package
// documentation).
type Ring struct {
	buf   []byte
	geo   geometry
	reuse bool

	nextID uint64
	free   uint64 // bytes in gaps
	live   int    // chunks

	recs  records
	spare uint32 // list of unused records
	index addressIndex

	current uint32  // the gap that chunks are cut from, or none
	bins    gapBins // all other gaps

	fill   func(endBytes uint64) (filledBytes uint64) // nil: all of the buffer has memory
	filled uint64                                     // bytes from the buffer's start that have memory
}

// New returns an empty ring over buf. As long as the ring is in use, only its writer may
// write to buf. New reads nothing from buf and writes nothing to it. It refuses the
// options that Validate refuses, and a buffer that is too small for a payload, or too large.
func New(buf []byte, opts Options) (*Ring, error) {
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("new ring: %w", err)
	}
	opts = opts.withDefaults()
	geo, err := newGeometry(uint64(len(buf)), opts)
	if err != nil {
		return nil, fmt.Errorf("new ring: %w", err)
	}
	r := &Ring{buf: buf, geo: geo, reuse: opts.Reuse, nextID: 1, index: newAddressIndex(geo), fill: opts.Fill}
	if r.fill == nil {
		r.filled = uint64(len(buf))
	}
	r.clear()
	return r, nil
}

// clear makes the ring one gap.
func (r *Ring) clear() {
	r.recs = append(r.recs[:0], record{kind: sentinel})
	r.spare, r.current, r.bins = none, none, gapBins{}
	r.free, r.live = r.geo.capacity(), 0

	all := r.takeRecord()
	r.recs[all] = record{kind: gapSpan, off: r.geo.lead, span: r.free}
	r.recs.linkBefore(none, all)
	r.addGap(all)
}

// Allocate makes a chunk with a payload of size bytes and writes its header.
// The payload is not cleared. Allocate reports false, and changes nothing, if no gap is
// large enough ([Stats] has the figures): release chunks and try again. It also reports
// false for a size below 1.
func (r *Ring) Allocate(size int, tag uint32) (c Chunk, ok bool) {
	if size <= 0 || uint64(size) > r.geo.maxPayload() {
		return Chunk{}, false
	}
	need := HeaderSize + uint64(size)
	if r.reuse && r.current != none {
		r.addToBin(r.current)
		r.current = none
	}
	gap := r.current
	if r.recs[gap].span < need {
		gap = r.nextGap(need)
	}
	if gap == none || !r.hasMemory(gap, need) {
		return Chunk{}, false
	}
	return r.geo.chunk(r.carve(gap, need, tag)), true
}

// hasMemory reports whether the buffer has memory for a chunk at the front of a gap.
func (r *Ring) hasMemory(gap uint32, need uint64) bool {
	end := r.recs[gap].off + r.geo.spanFor(need, r.recs[gap].span)
	if end > r.filled {
		r.filled = max(r.filled, r.fill(end))
	}
	return end <= r.filled
}

// carve cuts a chunk from the front of a gap of at least need bytes.
func (r *Ring) carve(gap uint32, need uint64, tag uint32) *record {
	ref := r.takeRecord()
	recs := r.recs
	g, c := &recs[gap], &recs[ref]
	take := r.geo.spanFor(need, g.span)
	c.off, c.span = g.off, take
	c.id, c.size, c.tag, c.kind = r.nextID, need-HeaderSize, tag, liveChunk
	g.off += take
	g.span -= take
	recs.linkBefore(gap, ref)
	recs.linkYoungest(ref)
	if g.span == 0 {
		r.dropGap(gap)
	}
	r.nextID++
	r.live++
	r.free -= take
	addr := r.geo.addr(c)
	r.index.put(addr, ref)
	putHeader(r.buf[c.off:addr], c.id, c.size)
	return c
}

// dropGap removes the current gap, which is used up.
func (r *Ring) dropGap(gap uint32) {
	r.current = none
	r.recs.unlinkSpan(gap)
	r.dropRecord(gap)
}

// Release frees exactly this chunk, of any age. It refuses one that was released
// before.
func (r *Ring) Release(c Chunk) error {
	ref := r.lookup(c)
	if ref == none {
		return fmt.Errorf("release %v: %w", c, errStale)
	}
	r.retire(ref)
	return nil
}

// ReleaseAll is Release for many chunks. It takes less time than as many
// calls if the chunks stand one behind the other, as those allocated one after
// the other mostly do. It refuses a chunk that was released before; then it has released the
// chunks before that one in the slice, and none after it.
func (r *Ring) ReleaseAll(chunks []Chunk) error {
	run := none  // chunks that stand side by side, already made into one span
	next := none // the one allocated after the last, as a rule released next
	for _, c := range chunks {
		ref := next
		if ref == none || r.recs[ref].id != c.ID || r.addr(ref) != c.Addr {
			ref = r.lookup(c)
		}
		if ref == none {
			r.coalesce(run)
			return fmt.Errorf("release %v: %w", c, errStale)
		}
		next = r.recs[ref].next
		r.vacate(ref)
		if run != none && r.recs[run].right == ref {
			r.absorb(run, ref)
			continue
		}
		r.coalesce(run)
		run = ref
	}
	r.coalesce(run)
	return nil
}

// retire turns a live chunk into a gap.
func (r *Ring) retire(ref uint32) {
	r.vacate(ref)
	r.coalesce(ref)
}

// vacate ends a chunk. Its span is neither chunk nor gap until coalesce turns it into a
// gap.
func (r *Ring) vacate(ref uint32) {
	r.recs.unlinkAge(ref)
	c := &r.recs[ref]
	c.kind, c.id = vacantSpan, 0
	r.live--
	r.free += c.span
}

// Oldest returns the live chunk that was allocated first.
func (r *Ring) Oldest() (Chunk, bool) { return r.chunkAt(r.recs.oldest()) }

// Next returns the live chunk that was allocated next after c. It returns
// false if c is the youngest, or is not live. To walk on after releasing c,
// ask for the next one first.
func (r *Ring) Next(c Chunk) (Chunk, bool) {
	ref := r.lookup(c)
	if ref == none {
		return Chunk{}, false
	}
	return r.chunkAt(r.recs[ref].next)
}

// Run fills dst with live chunks in the order of their age, c first, and
// returns their number: Next for many chunks at once. If there are fewer than
// len(dst), the youngest is the last of them. There is none if c is not
// live.
func (r *Ring) Run(c Chunk, dst []Chunk) int {
	ref := r.lookup(c)
	for i := range dst {
		if ref == none {
			return i
		}
		dst[i] = r.geo.chunk(&r.recs[ref])
		ref = r.recs[ref].next
	}
	return len(dst)
}

// Stats are the figures of one moment.
type Stats struct {
	CapacityBytes   uint64 // of the buffer, less what alignment leaves unused at its start
	UsedBytes       uint64 // of live chunks, with headers and padding
	FreeBytes       uint64 // CapacityBytes - UsedBytes
	LargestGapBytes uint64 // Allocate succeeds if size and header are at most this
	Chunks          int    // live
	NextID          uint64 // of the chunk allocated next
}

// Stats returns the present figures. Finding the largest gap walks the gaps of
// about its size.
func (r *Ring) Stats() Stats {
	return Stats{
		CapacityBytes:   r.geo.capacity(),
		UsedBytes:       r.geo.capacity() - r.free,
		FreeBytes:       r.free,
		LargestGapBytes: r.largestGap(),
		Chunks:          r.live,
		NextID:          r.nextID,
	}
}

// lookup returns the record of c, or none if c is not live. An id is never
// used twice, and is 0 in the record of anything but a live chunk.
func (r *Ring) lookup(c Chunk) uint32 {
	ref := r.index.get(c.Addr)
	if uint64(ref) >= uint64(len(r.recs)) || r.recs[ref].id != c.ID || r.addr(ref) != c.Addr || c.ID == 0 {
		return none
	}
	return ref
}

// addr returns the offset of a chunk's payload.
func (r *Ring) addr(ref uint32) uint64 { return r.geo.addr(&r.recs[ref]) }

func (r *Ring) chunkAt(ref uint32) (Chunk, bool) {
	if ref == none {
		return Chunk{}, false
	}
	return r.geo.chunk(&r.recs[ref]), true
}
