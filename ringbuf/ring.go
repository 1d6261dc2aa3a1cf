package ringbuf

import (
	"fmt"
	"math"
)

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

// Ring hands out the bytes of one buffer. Its methods are for the writer, one
// goroutine at a time; readers use none of them (see the package
// documentation).
type Ring struct {
	buf    []byte
	geo    geometry
	strict bool
	reuse  bool

	nextID uint64
	free   uint64 // bytes in gaps
	live   int    // chunks

	recs  records
	spare uint32 // list of unused records
	index addressIndex

	current uint32  // default order: the gap that chunks are cut from, or none
	bins    gapBins // default order: all other gaps
	start   uint64  // strict order: where the room ends (see strict.go)

	fill   func(endBytes uint64) (filledBytes uint64) // nil: all of the buffer has memory
	filled uint64                                     // bytes from the buffer's start that have
}

// New returns an empty ring over buf, which nobody else may write to as long
// as the ring is in use, unless that is what Options.NoHeaders is for. It reads
// nothing from buf and writes nothing to it. The errors are ErrAlign, ErrFill and
// ErrBuffer.
func New(buf []byte, opts Options) (*Ring, error) {
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("new ring: %w", err)
	}
	opts = opts.withDefaults()
	geo, err := newGeometry(uint64(len(buf)), opts)
	if err != nil {
		return nil, fmt.Errorf("new ring: %w", err)
	}
	r := &Ring{buf: buf, geo: geo, strict: opts.StrictFIFO, reuse: opts.Reuse && !opts.StrictFIFO, nextID: 1, index: newAddressIndex(geo), fill: opts.Fill}
	if r.fill == nil {
		r.filled = uint64(len(buf))
	}
	r.Clear()
	return r, nil
}

// Clear releases all chunks at once. Ids go on where they were, so that every
// Chunk from before is stale.
func (r *Ring) Clear() {
	r.recs = append(r.recs[:0], record{kind: sentinel})
	r.spare, r.current, r.bins = none, none, gapBins{}
	r.free, r.live, r.start = r.geo.capacity(), 0, r.geo.lead

	all := r.takeRecord()
	r.recs[all] = record{kind: gapSpan, off: r.geo.lead, span: r.free}
	r.recs.linkBefore(none, all)
	r.file(all)
}

// MaxPayload returns the size in bytes of the largest payload an empty ring
// can hold. Allocate answers ErrTooLarge to anything above.
func (r *Ring) MaxPayload() int { return int(r.geo.maxPayload()) }

// Allocate makes a chunk with a payload of size bytes and writes its header,
// if there are any.
// The payload's content is whatever the buffer held. The errors are ErrSize,
// ErrTooLarge and, when no gap is large enough now, ErrNoRoom as a *RoomError;
// then nothing has changed.
func (r *Ring) Allocate(size int, tag uint32) (Chunk, error) {
	c, ok := r.TryAllocate(size, tag)
	if !ok {
		return Chunk{}, r.explain(size)
	}
	return c, nil
}

// TryAllocate is Allocate for a caller that has a use for a full ring and none
// for the reason: it spares making the error and gathering its figures.
func (r *Ring) TryAllocate(size int, tag uint32) (c Chunk, ok bool) {
	if size <= 0 || uint64(size) > r.geo.maxPayload() {
		return Chunk{}, false
	}
	need := r.geo.header + uint64(size)
	if r.reuse && r.current != none {
		r.park(r.current)
		r.current = none
	}
	gap := r.current
	switch {
	case r.strict:
		gap = r.placeStrict(need)
	case r.recs[gap].span < need:
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

// carve cuts a chunk from the front of a gap that has room for its need.
func (r *Ring) carve(gap uint32, need uint64, tag uint32) *record {
	ref := r.takeRecord()
	recs := r.recs
	g, c := &recs[gap], &recs[ref]
	take := r.geo.spanFor(need, g.span)
	c.off, c.span = g.off, take
	c.id, c.size, c.tag, c.kind = r.nextID, need-r.geo.header, tag, liveChunk
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
	if r.geo.header != 0 {
		putHeader(r.buf[c.off:addr], c.id, c.size)
	}
	return c
}

// dropGap forgets a gap that was used up. Gaps are used only where they are
// the current one, or in strict order.
func (r *Ring) dropGap(gap uint32) {
	r.current = none
	r.recs.unlinkSpan(gap)
	r.dropRecord(gap)
}

// Bytes returns the payload of a live chunk, with its capacity cut to its
// length. The error is ErrStale.
func (r *Ring) Bytes(c Chunk) ([]byte, error) {
	ref := r.lookup(c)
	if ref == none {
		return nil, fmt.Errorf("bytes of %v: %w", c, ErrStale)
	}
	return r.payload(ref), nil
}

// Access returns the live chunk whose payload begins at addr, and that
// payload. The error is ErrUnknownAddress. A caller that remembers which chunk
// it means should use AccessID.
func (r *Ring) Access(addr uint64) (Chunk, []byte, error) {
	ref := r.find(addr)
	if ref == none {
		return Chunk{}, nil, fmt.Errorf("access address %d: %w", addr, ErrUnknownAddress)
	}
	return r.geo.chunk(&r.recs[ref]), r.payload(ref), nil
}

// AccessID is Access for the chunk with this id. The errors are
// ErrUnknownAddress when no live chunk's payload begins at addr and ErrStale
// when another chunk's does.
func (r *Ring) AccessID(addr, id uint64) (Chunk, []byte, error) {
	ref := r.find(addr)
	if ref == none {
		return Chunk{}, nil, fmt.Errorf("access chunk %d at %d: %w", id, addr, ErrUnknownAddress)
	}
	if got := r.recs[ref].id; got != id {
		return Chunk{}, nil, fmt.Errorf("access chunk %d at %d, where chunk %d lives: %w", id, addr, got, ErrStale)
	}
	return r.geo.chunk(&r.recs[ref]), r.payload(ref), nil
}

// Release frees exactly this chunk, whatever its age. The error is ErrStale.
func (r *Ring) Release(c Chunk) error {
	ref := r.lookup(c)
	if ref == none {
		return fmt.Errorf("release %v: %w", c, ErrStale)
	}
	r.retire(ref)
	return nil
}

// ReleaseAll is Release for many chunks. It takes less time than as many
// calls if the chunks stand one behind the other, as those allocated one after
// the other mostly do. The error is ErrStale; then the chunks before the stale
// one are released, and none after it.
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
			return fmt.Errorf("release %v: %w", c, ErrStale)
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

// retire turns a live chunk into room.
func (r *Ring) retire(ref uint32) {
	r.vacate(ref)
	r.coalesce(ref)
}

// vacate ends the life of a chunk. Its span is neither chunk nor gap until it
// is coalesced.
func (r *Ring) vacate(ref uint32) {
	if r.strict {
		r.advanceStart(ref)
	}
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
// dst has room for, the youngest is the last of them. There is none if c is not
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

// Reclaim asks isFree about the live chunks, oldest first, and releases those
// it accepts, until at least targetBytes came free, headers and padding
// included, or all chunks were asked about. A target of zero or less asks about
// all. It returns the ids released, oldest first.
//
// A chunk that isFree refuses is passed over; in strict FIFO order it ends the
// search. The room that came free need not be in one piece.
//
// isFree must not release the chunk it is asked about (Reclaim panics), nor
// keep the payload.
func (r *Ring) Reclaim(isFree func(c Chunk, payload []byte) bool, targetBytes int) (freed []uint64) {
	target := uint64(math.MaxUint64)
	if targetBytes > 0 {
		target = uint64(targetBytes)
	}
	var cameFree uint64
	for ref := r.recs.oldest(); ref != none && cameFree < target; {
		id := r.recs[ref].id
		ok := isFree(r.geo.chunk(&r.recs[ref]), r.payload(ref))
		if ref >= uint32(len(r.recs)) || r.recs[ref].id != id {
			panic(fmt.Sprintf("ringbuf: isFree released chunk %d, which Reclaim asked it about", id))
		}
		next := r.recs[ref].next
		switch {
		case ok:
			freed = append(freed, id)
			cameFree += r.recs[ref].span
			r.retire(ref)
		case r.strict:
			return freed
		}
		ref = next
	}
	return freed
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

// find is lookup for any id.
func (r *Ring) find(addr uint64) uint32 {
	ref := r.index.get(addr)
	if uint64(ref) >= uint64(len(r.recs)) || r.recs[ref].kind != liveChunk || r.addr(ref) != addr {
		return none // also if the entry is from before Clear
	}
	return ref
}

// addr returns the offset of a chunk's payload.
func (r *Ring) addr(ref uint32) uint64 { return r.geo.addr(&r.recs[ref]) }

func (r *Ring) payload(ref uint32) []byte {
	c := &r.recs[ref]
	addr := r.geo.addr(c)
	return r.buf[addr : addr+c.size : addr+c.size]
}

func (r *Ring) chunkAt(ref uint32) (Chunk, bool) {
	if ref == none {
		return Chunk{}, false
	}
	return r.geo.chunk(&r.recs[ref]), true
}
