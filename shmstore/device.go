package shmstore

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/omnibus-runtime/omnibus/codec"
)

// Device is memory that a store does not map, for example that of a GPU. A device
// allocates pieces, each of which belongs to one object from [Store.ReserveOn] on until
// the store frees the object.
//
// A device serves one store: only that store's writer may allocate and free. Devices are
// compared with ==. None of the methods may call the store, or block.
type Device interface {
	// Allocate allocates a piece, which stays in use until it is freed. It
	// reports false while there is no space. When all pieces are free, every size up to
	// MaxBytes must fit.
	Allocate(sizeBytes int64) (piece uint32, ok bool)
	// Free frees a piece. No reader uses it any more.
	Free(piece uint32)
	// Pieces is the number of pieces in use.
	Pieces() int
	// MaxBytes is the size of the largest piece that Allocate can ever allocate.
	MaxBytes() int64
}

// Grower is a device that can get more memory than it has. The store calls Grow when no
// eviction makes space, so that the present memory is used first.
type Grower interface {
	Device
	// Grow reports whether Allocate has space for a piece of this size now.
	Grow(sizeBytes int64) bool
}

// deviceUse is the writer's account of one device.
type deviceUse struct {
	dev       Device
	slots     []uint32 // of the objects that hold a piece, ascending by generation
	sizeBytes int64    // of their pieces, as requested
}

// heldPiece is the piece of a device that an object holds.
type heldPiece struct {
	device    *deviceUse // nil: nothing
	sizeBytes int64
	piece     uint32
}

// ReserveOn is [Store.Reserve] for an object that holds a piece of dev beside
// its own bytes: deviceBytes of it, which may be 0. The piece is freed with the object's
// slot, by an eviction, a deletion or an abort, and at the latest when the store closes.
//
// When dev has no space, settled objects that hold pieces of it are evicted, the
// oldest first; a [Grower] is then asked to grow. If that does not help, the error is a
// [*FullError] with [ResourceDevice]; a piece above dev.MaxBytes is [ErrTooLarge]. Writer
// only.
func (s *Store) ReserveOn(dev Device, deviceBytes int64, size int, c codec.ID, charge ReaderSet) (r Reservation, piece uint32, err error) {
	err = s.checkReserve(size, charge)
	switch {
	case err != nil:
	case deviceBytes < 0:
		err = ErrSize
	case deviceBytes > dev.MaxBytes():
		err = fmt.Errorf("%w: the largest piece is %d bytes", ErrTooLarge, dev.MaxBytes())
	}
	if err != nil {
		return Reservation{}, 0, fmt.Errorf("reserve %d bytes and %d on a device: %w", size, deviceBytes, err)
	}
	// The device comes first: a producer that waits for space on it should not evict
	// objects from the arena meanwhile.
	use := s.deviceUseOf(dev)
	piece, ok := s.allocateOn(use, deviceBytes)
	if !ok {
		return Reservation{}, 0, fmt.Errorf("reserve: %w", s.deviceFullError(use, deviceBytes, size))
	}
	r, err = s.reserve(size, c, charge)
	if err != nil {
		dev.Free(piece)
		return Reservation{}, 0, fmt.Errorf("reserve: %w", err)
	}
	s.attachPiece(r.slot, heldPiece{device: use, piece: piece, sizeBytes: deviceBytes})
	return r, piece, nil
}

// FreeUnusedOn evicts all settled objects that hold a piece of dev, and returns
// how many other objects hold one. With none left the store drops its account of the
// device, until the device is used again. Writer only.
func (s *Store) FreeUnusedOn(dev Device) (left int) {
	index := s.deviceIndex(dev)
	if index < 0 || s.closed.Load() {
		return 0
	}
	use := s.devices[index]
	for _, slot := range slices.Clone(use.slots) {
		s.evictSlot(slot)
	}
	if len(use.slots) == 0 {
		s.devices = slices.Delete(s.devices, index, index+1)
	}
	return len(use.slots)
}

// deviceUseOf returns the account of a device, and makes one for a new device.
func (s *Store) deviceUseOf(dev Device) *deviceUse {
	if index := s.deviceIndex(dev); index >= 0 {
		return s.devices[index]
	}
	use := &deviceUse{dev: dev}
	s.devices = append(s.devices, use)
	return use
}

func (s *Store) deviceIndex(dev Device) int {
	return slices.IndexFunc(s.devices, func(use *deviceUse) bool { return use.dev == dev })
}

// allocateOn allocates a piece. If there is no space, it evicts objects, and then grows
// the device.
func (s *Store) allocateOn(use *deviceUse, sizeBytes int64) (piece uint32, ok bool) {
	before := s.counters.evicted
	piece, ok = use.dev.Allocate(sizeBytes)
	for index := 0; !ok && index < len(use.slots); {
		if !s.evictSlot(use.slots[index]) {
			index++ // it stays; an evicted one leaves the list, and the next moves up
			continue
		}
		piece, ok = use.dev.Allocate(sizeBytes)
	}
	s.deviceEvicted += s.counters.evicted - before
	if grower, can := use.dev.(Grower); can && !ok && grower.Grow(sizeBytes) {
		return use.dev.Allocate(sizeBytes)
	}
	return piece, ok
}

// attachPiece records the piece of the object in slot, which is the youngest.
func (s *Store) attachPiece(slot uint32, held heldPiece) {
	if missing := int(slot) + 1 - len(s.pieces); missing > 0 {
		s.pieces = append(s.pieces, make([]heldPiece, missing)...)
	}
	s.pieces[slot] = held
	held.device.slots = append(held.device.slots, slot)
	held.device.sizeBytes += held.sizeBytes
}

// pieceOf returns the piece that the object in slot holds.
func (s *Store) pieceOf(slot uint32) heldPiece {
	if int(slot) >= len(s.pieces) {
		return heldPiece{}
	}
	return s.pieces[slot]
}

// detachPiece frees the piece of an object that no reader holds.
func (s *Store) detachPiece(slot uint32) {
	held := s.pieces[slot]
	s.pieces[slot] = heldPiece{}
	held.device.slots = s.withoutSlot(held.device.slots, slot)
	held.device.sizeBytes -= held.sizeBytes
	held.device.dev.Free(held.piece)
}

// withoutSlot removes a slot from a list that ascends by generation.
func (s *Store) withoutSlot(slots []uint32, slot uint32) []uint32 {
	index, _ := slices.BinarySearchFunc(slots, s.records[slot].gen, func(slot uint32, gen uint64) int { return cmp.Compare(s.records[slot].gen, gen) })
	return slices.Delete(slots, index, index+1)
}

// freePieces frees the pieces of all objects, because the store is closed.
func (s *Store) freePieces() {
	for _, use := range s.devices {
		for _, slot := range use.slots {
			use.dev.Free(s.pieces[slot].piece)
		}
	}
	s.devices, s.pieces = nil, nil
}

// deviceFullError explains why a device had no space. It checks only the
// objects that hold pieces of the device, because a producer that waits for space
// tries often.
func (s *Store) deviceFullError(use *deviceUse, deviceBytes int64, size int) *FullError {
	s.counters.full++
	e := &FullError{
		Resource:          ResourceDevice,
		NeededBytes:       size,
		FreeBytes:         int64(s.ring.Stats().FreeBytes),
		FreeSlots:         int(s.geo.slots) - s.inUse,
		LargeBytes:        int64(s.largeBytesUsed()),
		NeededDeviceBytes: deviceBytes,
		Pieces:            len(use.slots),
		PieceBytes:        use.sizeBytes,
	}
	e.Holders = s.holders(func(h *Holder, a *account) {
		for _, slot := range use.slots {
			s.addHeld(h, a, slot)
		}
	})
	slices.SortStableFunc(e.Holders, func(a, b Holder) int { return cmp.Compare(b.PieceBytes, a.PieceBytes) })
	for _, slot := range use.slots {
		if s.isReserved(slot) {
			e.Reserved++
			e.ReservedBytes += int64(s.objectBytes(slot))
		}
	}
	return e
}

// piecesInUse adds up the pieces of all devices that objects hold.
func (s *Store) piecesInUse() (pieces int, sizeBytes int64) {
	for _, use := range s.devices {
		pieces += len(use.slots)
		sizeBytes += use.sizeBytes
	}
	return pieces, sizeBytes
}

// checkDevices compares the pieces that objects hold with the counts of the devices.
func (c *checker) checkDevices() {
	listed := 0
	for i, use := range c.devices {
		listed += len(use.slots)
		if inUse := use.dev.Pieces(); inUse != len(use.slots) {
			c.report(InvariantDevices, "device %d has %d pieces in use, %d objects hold one", i, inUse, len(use.slots))
		}
		c.checkPieces(i, use)
	}
	holding := 0
	for slot, held := range c.pieces {
		if held.device == nil {
			continue
		}
		holding++
		if slot >= len(c.records) || c.records[slot].gen == 0 || c.deviceIndex(held.device.dev) < 0 {
			c.report(InvariantDevices, "slot %d has no object or an unknown device, and holds piece %d", slot, held.piece)
		}
	}
	if holding != listed {
		c.report(InvariantDevices, "%d objects hold a piece, %d are listed", holding, listed)
	}
}

// checkPieces checks the objects that hold a piece of one device.
func (c *checker) checkPieces(device int, use *deviceUse) {
	holders := make(map[uint32]uint32, len(use.slots))
	var lastGen uint64
	var sum int64
	for _, slot := range use.slots {
		held, gen := c.pieceOf(slot), c.records[slot].gen
		if held.device != use || gen <= lastGen {
			c.report(InvariantDevices, "slot %d has generation %d after %d on device %d; it holds a piece of it: %t", slot, gen, lastGen, device, held.device == use)
			continue
		}
		if other, twice := holders[held.piece]; twice {
			c.report(InvariantDevices, "slots %d and %d hold piece %d of device %d", other, slot, held.piece, device)
		}
		holders[held.piece] = slot
		lastGen = gen
		sum += held.sizeBytes
	}
	if sum != use.sizeBytes {
		c.report(InvariantDevices, "the pieces of device %d have %d bytes, %d are counted", device, sum, use.sizeBytes)
	}
}
