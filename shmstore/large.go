package shmstore

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// largeTable finds the segments of large objects by their generation, which is
// never used twice. The owner and all readers of its process share one table, which
// the writer fills; a reader in another process has its own table, which AddSegment
// fills. It is safe for concurrent use.
type largeTable struct {
	mu      lockorder.RWMutex[lockorder.LargeTable]
	objects map[uint64]largeObject
	closed  bool
}

// largeObject is an entry of the table.
type largeObject struct {
	segment *segment // nil: the holder of the reservation has not called Store.Make yet
	size    uint64   // as reserved
	slot    uint32
	forget  func(unmap, stays func()) // from the function of OnLarge; nil: no device knows the segment
}

// release unmaps the segment, after the devices that know it have forgotten it, and then
// calls then. If they never forget it, it calls stays instead.
func (o *largeObject) release(then, stays func()) {
	if o.forget == nil {
		if o.segment != nil {
			o.segment.release()
		}
		then()
		return
	}
	o.forget(func() {
		o.segment.release()
		then()
	}, stays)
}

func nothing() {}

func newLargeTable() *largeTable { return &largeTable{objects: make(map[uint64]largeObject)} }

func (t *largeTable) get(gen uint64) (o largeObject, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	o, ok = t.objects[gen]
	return o, ok
}

// add adds an object and owns its segment from then on. If there is one for the
// generation already, or the table is closed, it releases the new segment.
func (t *largeTable) add(gen uint64, o largeObject) error {
	exists, err := t.tryAdd(gen, o)
	if exists || err != nil {
		o.release(nothing, nothing)
	}
	return err
}

func (t *largeTable) tryAdd(gen uint64, o largeObject) (exists bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false, ErrClosed
	}
	if _, exists = t.objects[gen]; !exists {
		t.objects[gen] = o
	}
	return exists, nil
}

// setSegment sets the segment of an object whose reservation is open.
func (t *largeTable) setSegment(gen uint64, seg *segment, forget func(unmap, stays func())) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.objects[gen]
	o.segment, o.forget = seg, forget
	t.objects[gen] = o
}

// releaseIf removes all objects that are gone, and releases their segments.
func (t *largeTable) releaseIf(gone func(gen uint64, o largeObject) bool) {
	var dropped []largeObject
	t.mu.Lock()
	for gen, o := range t.objects {
		if gone(gen, o) {
			dropped = append(dropped, o)
			delete(t.objects, gen)
		}
	}
	t.mu.Unlock()
	for i := range dropped {
		dropped[i].release(nothing, nothing)
	}
}

// remove removes one object. The caller releases its segment.
func (t *largeTable) remove(gen uint64) (o largeObject) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o = t.objects[gen]
	delete(t.objects, gen)
	return o
}

// close releases all segments, and every segment that is added later.
func (t *largeTable) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.releaseIf(func(uint64, largeObject) bool { return true })
}

// wholePages rounds a size up to whole pages.
func wholePages(sizeBytes uint64) uint64 { return (sizeBytes + pageBytes - 1) &^ (pageBytes - 1) }

// reserveLarge is reserve for an object that gets a segment of its own: a spare one, a new
// one, or with deferMemory and without a spare one, none yet: [Store.Make] makes it. If
// it fails, only its evictions remain.
func (s *Store) reserveLarge(size int, c codec.ID, charge ReaderSet, deferMemory bool) (Reservation, error) {
	needed := wholePages(uint64(size))
	o, spare := s.takeSpare(needed)
	if !spare && !s.makeLargeSpace(needed) {
		return Reservation{}, s.largeFullError(size)
	}
	slot, ok := s.allocateSlot(0)
	if !ok {
		if spare {
			s.spares.keep(o)
		}
		return Reservation{}, s.fullError(size)
	}
	// If a large object was evicted for the slot, its segment may be a spare now, and count with more bytes than before.
	for s.largeBytes+s.spares.sizeBytes+needed > s.maxLarge && s.dropSpare() {
	}
	if !spare && !deferMemory {
		var err error
		if o.segment, err = s.makeLargeSegment(size); err != nil {
			s.releaseSlot(slot)
			return Reservation{}, err
		}
		o.forget = s.announceLarge(o.segment)
	}
	o.size, o.slot = uint64(size), slot
	r := s.grant(slot, size, c, charge)
	relaxedStore64(&s.lines[slot].offset, largeOffset)
	view := s.grantView
	view.data = nil
	if o.segment != nil {
		view.data = o.segment.data
	}
	r.view = &view
	s.largeSlots = append(s.largeSlots, slot)
	s.largeBytes += needed
	return r, s.large.add(r.gen, o)
}

// Make makes the memory of a reservation that needs memory, see [Reservation.NeedsMemory].
// That takes about as long as clearing so much memory; meanwhile the writer grants other
// reservations. If it fails, the reservation is unchanged, and its holder aborts it. The
// error is a [*MemoryError], or one of the system's; unlike [Store.Reserve], Make evicts
// nothing for want of memory. The holder of the reservation calls it, on any goroutine.
func (s *Store) Make(r *Reservation) error {
	seg, err := s.newLargeSegment(int(r.size))
	if err != nil {
		return fmt.Errorf("make the memory of %d bytes: %w", r.size, err)
	}
	s.large.setSegment(r.gen, seg, s.announceLarge(seg))
	r.view.data = seg.data
	return nil
}

// announceLarge calls the function of OnLarge, if one is installed.
func (s *Store) announceLarge(seg *segment) (forget func(unmap, stays func())) {
	if s.onLarge == nil {
		return nil
	}
	return s.onLarge(seg.data)
}

// OnLarge installs the function made, which is called with the memory of each new large
// object. A device may register the memory there, and must forget it before it is unmapped.
//
// Made returns a function forget, or nil. The store calls forget when no object needs the
// memory any more: when its object is gone and, with Options.Reuse, the memory is not kept
// for the next one either. Forget calls unmap or stays, once, at once or later, on any
// goroutine: unmap when the device has forgotten the memory, and stays when the device will
// never forget it. After stays the memory stays mapped, and other objects are evicted for
// it. Until forget has called one of them, the memory counts as that of a held object: so
// [Store.Reserve] may find no space for a large object although no reader has to release
// one. The call of unmap or stays calls the function of [Store.OnRoom] if the writer waits.
//
// Call OnLarge before the first large object is made. Made and forget must not call the
// store; [Store.Make] calls made on its caller's goroutine. Writer only.
func (s *Store) OnLarge(made func(mem []byte) (forget func(unmap, stays func()))) { s.onLarge = made }

// releaseSlot undoes allocateSlot.
func (s *Store) releaseSlot(slot uint32) {
	if err := s.ring.Release(s.records[slot].chunk); err != nil {
		panic("shmstore: a slot that was just allocated has no chunk: " + err.Error())
	}
	s.freeSlots = append(s.freeSlots, slot)
	s.inUse--
}

// makeLargeSpace drops spare segments, and then evicts large objects, the oldest first,
// until there is space for one more. It does not wait for segments that are being
// forgotten: it reports false if they still take the space.
func (s *Store) makeLargeSpace(neededBytes uint64) bool {
	for s.largeBytes+s.spares.sizeBytes+s.stayingBytes.Load()+neededBytes > s.maxLarge {
		if !s.dropSpare() && !s.evictLarge() {
			return false
		}
	}
	return s.largeBytesUsed()+neededBytes <= s.maxLarge
}

// largeBytesUsed is the part of the space for large objects that is in use: by objects, in
// whole pages, and by segments without an object.
func (s *Store) largeBytesUsed() uint64 {
	return s.largeBytes + s.spares.sizeBytes + s.leavingBytes.Load() + s.stayingBytes.Load()
}

func (s *Store) largeFullError(size int) *FullError {
	err := s.fullError(size)
	err.Resource = ResourceLarge
	return err
}

// evictLarge evicts the oldest settled large object. The list changes only
// with the eviction that ends the search.
func (s *Store) evictLarge() bool { return slices.ContainsFunc(s.largeSlots, s.evictSlot) }

// makeLargeSegment makes a segment. As long as there is not enough memory for it, it drops
// spare segments, and then evicts large objects.
func (s *Store) makeLargeSegment(size int) (*segment, error) {
	for {
		leaving := s.leavingBytes.Load() > 0 // read before the attempt
		seg, err := s.newLargeSegment(size)
		if !errors.Is(err, ErrMemory) {
			return seg, err
		}
		if leaving {
			return nil, s.largeFullError(size) // discard presses the doorbell when there is more
		}
		if !s.dropSpare() && !s.evictLarge() {
			return nil, err
		}
	}
}

// newLargeSegment makes a segment of the size that segmentBytes gives. If there is not
// enough memory for that, it has only the pages that the object needs.
func (s *Store) newLargeSegment(size int) (*segment, error) {
	segmentBytes := s.segmentBytes(size)
	if s.memory == Shared {
		err := checkHeadroom(segmentBytes)
		if needed := wholePages(uint64(size)); err != nil && segmentBytes > needed {
			segmentBytes = needed
			err = checkHeadroom(segmentBytes)
		}
		if err != nil {
			return nil, err
		}
	}
	return newSegment(s.memory, kindLarge, int(segmentBytes))
}

// releaseLarge keeps or discards the segment of a large object that no reader holds, and
// returns the object's bytes.
func (s *Store) releaseLarge(slot uint32) (sizeBytes uint64) {
	gen := s.records[slot].gen
	o := s.large.remove(gen)
	s.largeSlots = s.withoutSlot(s.largeSlots, slot)
	s.largeBytes -= wholePages(o.size)
	if o.segment == nil {
		return o.size // it was never made
	}
	if invariantsOn {
		poison(o.segment.data)
	}
	// The segment may have more bytes than the object was counted with.
	kept := s.largeBytes + s.spares.sizeBytes + uint64(len(o.segment.data))
	if s.reuse && kept <= s.keepLarge {
		s.spares.keep(o)
	} else {
		s.discard(o)
	}
	return o.size
}

// objectBytes is the size of the object in slot, as it was reserved.
func (s *Store) objectBytes(slot uint32) uint64 {
	if s.lines[slot].isLarge() {
		o, _ := s.large.get(s.records[slot].gen)
		return o.size
	}
	return s.records[slot].chunk.Size
}

// IsLarge reports whether an object has a segment of its own, where its bytes
// begin at 0; the Offset of its handle lies in no arena. A reader in another
// process must be given the segment before it can read the object: see
// [Store.LargeSegment] and [Reader.AddSegment].
func IsLarge(h Handle) bool { return h.Offset == largeOffset }

// LargeSegment returns the segment of a large object, to be handed to a reader
// in another process, and its length in bytes. The segment is a memfd that no other
// process can write to, change the size of, or punch holes into. The object's bytes begin
// at 0. The store owns the descriptor, which is valid as long as a debt or a pin holds the
// object: a debt of that reader does. The errors are [ErrStale], [ErrCorrupt], [ErrClosed],
// and [ErrUnsupported] for an object in the arena, or in [Heap] memory. Writer only.
func (s *Store) LargeSegment(h Handle) (fd int, sizeBytes int64, err error) {
	err = s.verify(h)
	o, large := s.large.get(h.Gen)
	switch {
	case err != nil:
	case !large:
		err = fmt.Errorf("%w: it is in the arena", ErrUnsupported)
	case s.memory != Shared:
		err = fmt.Errorf("%w: the store is in %v memory", ErrUnsupported, s.memory)
	default:
		return o.segment.fd, int64(len(o.segment.data)), nil
	}
	return -1, 0, fmt.Errorf("segment of %v: %w", h, err)
}

// checkLarge compares the list of large slots, the directory and the table of segments.
func (c *checker) checkLarge() {
	var lastGen, sum uint64
	for _, slot := range c.largeSlots {
		rec, ln := &c.records[slot], &c.lines[slot]
		st := stateOf(ln.word.load()) // read first: size and segment are set before it is live
		o, ok := c.large.get(rec.gen)
		if !ok || o.slot != slot || !ln.isLarge() || rec.gen <= lastGen {
			c.report(InvariantLarge, "slot %d has generation %d after %d, large: %t, a segment: %t, of slot %d", slot, rec.gen, lastGen, ln.isLarge(), ok, o.slot)
			continue
		}
		lastGen = rec.gen
		sum += wholePages(o.size)
		if o.segment == nil {
			if st == stateLive || st == stateClosing {
				c.report(InvariantLarge, "slot %d is %v, and has no segment", slot, st)
			}
			continue
		}
		size := atomic.LoadUint64(&ln.size)
		if st == stateLive && size > o.size || o.size > uint64(len(o.segment.data)) || o.segment.released {
			c.report(InvariantLarge, "slot %d says %d bytes of %d asked for, its segment has %d; released: %t", slot, size, o.size, len(o.segment.data), o.segment.released)
		}
	}
	large := 0
	for slot := range c.records {
		if c.records[slot].gen != 0 && c.lines[slot].isLarge() {
			large++
		}
	}
	c.large.mu.RLock()
	known := len(c.large.objects)
	c.large.mu.RUnlock()
	if sum != c.largeBytes || sum+c.spares.sizeBytes > c.maxLarge || large != len(c.largeSlots) || large != known {
		c.report(InvariantLarge, "%d slots are large, %d are listed, %d segments kept, for %d bytes, %d are counted, the most is %d",
			large, len(c.largeSlots), known, sum, c.largeBytes, c.maxLarge)
	}
	c.checkSpares()
}

// checkSpares checks the segments without an object.
func (c *checker) checkSpares() {
	var sum uint64
	for i, o := range c.spares.segments {
		sum += uint64(len(o.segment.data))
		if o.segment.released {
			c.report(InvariantLarge, "spare segment %d of %d is released", i, len(c.spares.segments))
		}
	}
	if sum != c.spares.sizeBytes {
		c.report(InvariantLarge, "%d spare segments have %d bytes, %d are counted", len(c.spares.segments), sum, c.spares.sizeBytes)
	}
}
