package shmstore

import (
	"fmt"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/codec"
)

// Reservation is the right to fill the bytes of one object that no reader can
// read yet. It is a plain value; its holder, on any goroutine, calls
// exactly one of Commit and Abort, once. A second call is a bug and panics.
//
// It is small enough for registers, see [Lease]. Offset and codec are in the
// directory line, which the holder of the reservation writes until it commits.
type Reservation struct {
	view *grantView
	gen  uint64
	size uint64
	slot uint32
}

// grantView is the part of a store that a reservation uses. As with
// [leaseView], a large object has a view of its own, with its own memory.
type grantView struct {
	geo      geometry
	data     []byte // the arena, or the segment of a large object
	lines    []line
	local    *Reader
	doorbell *doorbell
}

// Reserve grants size bytes for one object encoded by c, and charges the
// given readers with one debt each. Writer only.
//
// When there is no space, settled objects are evicted, the oldest first. The
// errors are [ErrSize], [ErrTooLarge], [ErrClosed], [ErrUnknownReader], [ErrQuarantined], and a
// [*FullError] when nothing more can be evicted. With Options.Reuse, space that was never
// used gets its memory here: if the machine has none, the store is full with what it has,
// and the error matches [ErrMemory] too.
//
// An object above Options.LargeObjectBytes gets a segment of its own, which Reserve
// makes and touches: that takes about as long as clearing so much memory. For such an
// object the error may also be a [*MemoryError], or one of the system's.
func (s *Store) Reserve(size int, c codec.ID, charge ReaderSet) (Reservation, error) {
	if err := s.checkReserve(size, charge); err != nil {
		return Reservation{}, fmt.Errorf("reserve %d bytes: %w", size, err)
	}
	r, err := s.reserve(size, c, charge)
	if err != nil {
		return Reservation{}, fmt.Errorf("reserve: %w", err)
	}
	return r, nil
}

// reserve is Reserve after its arguments were checked.
func (s *Store) reserve(size int, c codec.ID, charge ReaderSet) (Reservation, error) {
	if uint64(size) > s.inArena {
		return s.reserveLarge(size, c, charge, false)
	}
	s.reclaim(1)
	slot, ok := s.allocateSlot(size)
	if !ok {
		return Reservation{}, s.fullError(size)
	}
	return s.grant(slot, size, c, charge), nil
}

// ReserveExtent grants up to n objects of up to size bytes each, all with the
// same charges, and appends them to dst: as many as fit, and an error if none
// does. A producer uses the reservations of an extent one by one, and aborts those that it
// does not need. Large objects are granted one at a time. Writer only.
func (s *Store) ReserveExtent(dst []Reservation, n, size int, c codec.ID, charge ReaderSet) ([]Reservation, error) {
	return s.reserveExtent(dst, n, size, c, charge, false)
}

// ReserveAhead is ReserveExtent, but it does not wait for the system: a large object for
// which no spare segment is kept gets a reservation without memory, see
// [Reservation.NeedsMemory]. Writer only.
func (s *Store) ReserveAhead(dst []Reservation, n, size int, c codec.ID, charge ReaderSet) ([]Reservation, error) {
	return s.reserveExtent(dst, n, size, c, charge, true)
}

// ReserveAlone is [Store.ReserveAhead] for one object that gets a segment of its own, however
// small it is: the arena keeps its space for the payloads that it was sized for. If
// makeMemory is true, it makes the memory and waits for the system, as [Store.Reserve] does.
// Writer only.
func (s *Store) ReserveAlone(dst []Reservation, size int, c codec.ID, makeMemory bool) ([]Reservation, error) {
	if err := s.checkReserve(size, 0); err != nil {
		return dst, fmt.Errorf("reserve %d bytes alone: %w", size, err)
	}
	r, err := s.reserveLarge(max(size, 1), c, 0, !makeMemory)
	if err != nil {
		return dst, fmt.Errorf("reserve: %w", err)
	}
	return append(dst, r), nil
}

func (s *Store) reserveExtent(dst []Reservation, n, size int, c codec.ID, charge ReaderSet, deferMemory bool) ([]Reservation, error) {
	if n < 1 {
		return dst, fmt.Errorf("reserve an extent of %d objects: %w", n, ErrSize)
	}
	if err := s.checkReserve(size, charge); err != nil {
		return dst, fmt.Errorf("reserve an extent of %d bytes each: %w", size, err)
	}
	if uint64(size) > s.inArena {
		r, err := s.reserveLarge(size, c, charge, deferMemory)
		if err != nil {
			return dst, fmt.Errorf("reserve an extent: %w", err)
		}
		return append(dst, r), nil
	}
	s.reclaim(n)
	for i := range n {
		slot, ok := s.allocateSlot(size)
		switch {
		case ok:
			dst = append(dst, s.grant(slot, size, c, charge))
		case i == 0:
			return dst, fmt.Errorf("reserve an extent: %w", s.fullError(size))
		default:
			return dst, nil
		}
	}
	return dst, nil
}

// checkReserve checks the arguments of a reservation.
func (s *Store) checkReserve(size int, charge ReaderSet) error {
	switch {
	case s.closed.Load():
		return ErrClosed
	case size < 0:
		return ErrSize
	case uint64(size) > s.geo.maxObject:
		return fmt.Errorf("%w: the largest is %d bytes", ErrTooLarge, s.geo.maxObject)
	}
	return s.checkCharge(charge)
}

// checkCharge checks that every reader of the set is present and not quarantined.
func (s *Store) checkCharge(charge ReaderSet) error {
	if absent := charge &^ s.present; absent != 0 {
		return fmt.Errorf("%w: %v", ErrUnknownReader, absent)
	}
	if bad := charge & s.quarantine; bad != 0 {
		return fmt.Errorf("%w: %v", ErrQuarantined, bad)
	}
	return nil
}

// allocateSlot finds a slot and space for size bytes, evicts for them if there are none,
// and fills in the slot's chunk.
func (s *Store) allocateSlot(size int) (slot uint32, ok bool) {
	s.memoryErr = nil
	if slot, ok = s.tryAllocateSlot(size); ok {
		return slot, true
	}
	return s.makeSpace(size)
}

// tryAllocateSlot is allocateSlot without eviction.
func (s *Store) tryAllocateSlot(size int) (slot uint32, ok bool) {
	fresh := len(s.freeSlots) == 0
	switch {
	case !fresh:
		slot = s.freeSlots[len(s.freeSlots)-1]
	case len(s.records) < int(s.geo.slots):
		slot = uint32(len(s.records))
		if s.memoryErr = s.directorySegment.fill(directoryBytes(int(slot) + 1)); s.memoryErr != nil {
			return 0, false
		}
	default:
		return 0, false
	}
	// The ring has no empty chunks; an empty object takes one byte.
	chunk, ok := s.ring.Allocate(max(size, 1), slot)
	if !ok {
		return 0, false
	}
	if fresh {
		s.records = append(s.records, record{})
	} else {
		s.freeSlots = s.freeSlots[:len(s.freeSlots)-1]
	}
	s.records[slot].chunk = chunk
	s.inUse++
	return slot, true
}

// grant makes an allocated slot into a reservation.
func (s *Store) grant(slot uint32, size int, c codec.ID, charge ReaderSet) Reservation {
	s.generation++
	gen := s.generation
	rec := &s.records[slot]
	rec.gen, rec.charged = gen, charge
	ln := &s.lines[slot]
	ln.word.storeRelaxed(wordOf(gen, stateFree))
	relaxedStore64(&ln.offset, rec.chunk.Addr)
	relaxedStore32(&ln.codec, uint32(c))
	s.charge(slot, charge)
	s.counters.reserved++
	return Reservation{view: &s.grantView, gen: gen, size: uint64(size), slot: slot}
}

// NeedsMemory reports whether the reservation has no memory yet: its holder calls
// [Store.Make] before any other use of it, except Abort.
func (r *Reservation) NeedsMemory() bool { return r.view.data == nil }

// Bytes is the memory to fill. It is not zeroed, and must not be touched after
// Commit or Abort. Copy payloads into it with [codec.Copy].
func (r *Reservation) Bytes() []byte {
	begin := atomic.LoadUint64(&r.view.lines[r.slot].offset) &^ largeOffset
	end := begin + r.size
	return r.view.data[begin:end:end]
}

// Commit publishes the first size bytes as an object and returns its handle.
// It adds local debts for reader 0, so that a producer in the owner's process
// can deliver to stages there without asking the writer; zero is fine. An
// [ErrSize] leaves the reservation as it was. Any goroutine may call it.
func (r *Reservation) Commit(size, local int) (h Handle, err error) {
	r.mustBeOpen("Commit")
	if r.NeedsMemory() {
		panic("shmstore: Commit of a reservation without memory")
	}
	if size < 0 || uint64(size) > r.size || local < 0 || local > maxDebts {
		return h, fmt.Errorf("commit %d bytes of %d for %d local deliveries: %w", size, r.size, local, ErrSize)
	}
	// The writer neither evicts nor charges the slot before it is live: until then
	// only the holder writes its line and its local account.
	ln := &r.view.lines[r.slot]
	relaxedStore64(&ln.size, uint64(size))
	if owed := &r.view.local.owed[r.slot]; local > 0 {
		relaxedStore32(owed, *owed+uint32(local))
	}
	offset, codecID := atomic.LoadUint64(&ln.offset), atomic.LoadUint32(&ln.codec)
	r.finish("Commit", stateLive)
	h.Store, h.Gen = r.view.geo.store, r.gen
	h.Offset, h.Size = offset, uint64(size)
	h.Slot, h.Codec = r.slot, codecID
	return h, nil
}

// Abort ends the reservation without an object. The writer's next scan frees the slot,
// the space and the debts. Any goroutine may call it.
func (r *Reservation) Abort() {
	r.mustBeOpen("Abort")
	r.finish("Abort", stateAborted)
	r.view.doorbell.press()
}

func (r *Reservation) mustBeOpen(op string) {
	if r.view == nil {
		panic("shmstore: " + op + " of a zero Reservation")
	}
	if r.view.lines[r.slot].word.load() != wordOf(r.gen, stateFree) {
		panic("shmstore: " + op + " of a reservation that was already committed or aborted")
	}
}

// finish ends the reservation. Of two calls that race, one panics.
func (r *Reservation) finish(op string, to state) {
	word := &r.view.lines[r.slot].word
	if !word.compareAndSwap(wordOf(r.gen, stateFree), wordOf(r.gen, to)) {
		panic("shmstore: " + op + " of a reservation that was committed or aborted at the same time")
	}
}

// fullError explains why an object of size bytes found no space.
func (s *Store) fullError(size int) *FullError {
	s.counters.full++
	ring := s.ring.Stats()
	e := &FullError{
		Resource:    ResourceRoom,
		NeededBytes: size,
		FreeBytes:   int64(ring.FreeBytes),
		FreeSlots:   int(s.geo.slots) - s.inUse,
		Holders:     s.Holders(),
		LargeBytes:  int64(s.largeBytesUsed()),
		Memory:      s.memoryErr,
	}
	if e.FreeSlots == 0 {
		e.Resource = ResourceSlots
	}
	e.Reserved, e.ReservedBytes = s.reserved()
	return e
}

// reserved counts the reservations that are neither committed nor aborted.
func (s *Store) reserved() (objects int, sizeBytes int64) {
	for slot := range s.records {
		if s.isReserved(uint32(slot)) {
			objects++
			sizeBytes += int64(s.objectBytes(uint32(slot)))
		}
	}
	return objects, sizeBytes
}

func (s *Store) isReserved(slot uint32) bool {
	return s.records[slot].gen != 0 && stateOf(s.lines[slot].word.load()) == stateFree
}
