package shmstore

import (
	"cmp"
	"fmt"
	"slices"
)

// counters are totals since the store was created.
type counters struct {
	reserved, aborted, evicted, pinConflicts, full uint64
}

// Stats are the figures of one moment. Sizes are in bytes.
type Stats struct {
	ArenaBytes  int64 // space for objects
	FreeBytes   int64 // of these, free; not necessarily in one piece
	LargestFree int64 // the largest object that fits there without an eviction
	Slots       int
	FreeSlots   int
	Objects     int // in the store, held or not, reservations included
	Reserved    int // of them, neither committed nor aborted
	Readers     ReaderSet
	Quarantined ReaderSet

	MaxLargeBytes int64 // bound for the segments of large objects
	LargeBytes    int64 // of these segments, in whole pages, those of objects that are gone included
	LargeObjects  int   // of Objects, those with a segment of their own

	Pieces     int   // of devices, each held by one of Objects
	PieceBytes int64 // of these, as they were asked for

	ReservedTotal uint64 // objects ever granted
	AbortedTotal  uint64 // reservations ever aborted and freed
	EvictedTotal  uint64 // objects ever evicted or deleted
	// DeviceEvictedTotal is how many of them were evicted for space on a device.
	DeviceEvictedTotal uint64
	PinConflictsTotal  uint64 // evictions postponed by a pin
	FullTotal          uint64 // reservations refused for lack of space or slots
}

// Stats returns the present figures. Writer only.
func (s *Store) Stats() Stats {
	ring := s.ring.Stats()
	reserved, _ := s.reserved()
	pieces, pieceBytes := s.piecesInUse()
	return Stats{
		ArenaBytes:         int64(s.geo.arena),
		FreeBytes:          int64(ring.FreeBytes),
		LargestFree:        min(max(int64(ring.LargestGapBytes)-ringHeaderBytes, 0), int64(s.inArena)),
		Slots:              int(s.geo.slots),
		FreeSlots:          int(s.geo.slots) - s.inUse,
		Objects:            s.inUse,
		Reserved:           reserved,
		Readers:            s.present,
		Quarantined:        s.quarantine,
		MaxLargeBytes:      int64(s.maxLarge),
		LargeBytes:         int64(s.largeBytesUsed()),
		LargeObjects:       len(s.largeSlots),
		Pieces:             pieces,
		PieceBytes:         pieceBytes,
		ReservedTotal:      s.counters.reserved,
		AbortedTotal:       s.counters.aborted,
		EvictedTotal:       s.counters.evicted,
		DeviceEvictedTotal: s.deviceEvicted,
		PinConflictsTotal:  s.counters.pinConflicts,
		FullTotal:          s.counters.full,
	}
}

// Holder describes the objects that one reader keeps from being evicted.
type Holder struct {
	Reader      ReaderID
	Name        string
	Quarantined bool
	Objects     int   // held by a debt or a pin
	Bytes       int64 // of these objects
	Debts       int   // deliveries not settled
	Pins        int
	Pieces      int   // of devices, held with the objects
	PieceBytes  int64 // of these, as they were asked for
	// Oldest is the lowest generation among the objects. Generations count
	// up with every object: a low one has been held for long.
	Oldest uint64
}

func (h Holder) String() string {
	quarantined := ""
	if h.Quarantined {
		quarantined = ", quarantined,"
	}
	pieces := ""
	if h.Pieces > 0 {
		pieces = fmt.Sprintf(", with %d bytes in %d pieces of devices,", h.PieceBytes, h.Pieces)
	}
	return fmt.Sprintf("reader %d (%s)%s holds %d bytes in %d objects%s since generation %d", h.Reader, h.Name, quarantined, h.Bytes, h.Objects, pieces, h.Oldest)
}

// Holders lists the readers that hold objects, the one with most bytes first.
// It checks every object. Writer only.
func (s *Store) Holders() []Holder {
	return s.holders(func(h *Holder, a *account) {
		for slot := range s.records {
			s.addHeld(h, a, uint32(slot))
		}
	})
}

// holders is Holders for the objects that add adds with addHeld.
func (s *Store) holders(add func(h *Holder, a *account)) []Holder {
	var holders []Holder
	for _, a := range s.accounts {
		h := Holder{Reader: a.id, Name: a.name, Quarantined: s.quarantine.Has(a.id)}
		if add(&h, a); h.Objects > 0 {
			holders = append(holders, h)
		}
	}
	slices.SortStableFunc(holders, func(a, b Holder) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return holders
}

// addHeld adds the object in slot to h, if the reader of the account holds it.
func (s *Store) addHeld(h *Holder, a *account, slot uint32) {
	rec := &s.records[slot]
	if rec.gen == 0 || stateOf(s.lines[slot].word.load()) != stateLive {
		return
	}
	debts, pins := a.openDebts(slot), a.ledger[slot].pin.Load()
	distrusted := h.Quarantined && s.mayHold(slot).Has(a.id)
	if debts <= 0 && pins == 0 && !distrusted {
		return
	}
	h.Objects++
	h.Bytes += int64(s.objectBytes(slot))
	h.Debts += int(max(debts, 0))
	h.Pins += int(pins)
	if held := s.pieceOf(slot); held.device != nil {
		h.Pieces++
		h.PieceBytes += held.sizeBytes
	}
	if h.Oldest == 0 || rec.gen < h.Oldest {
		h.Oldest = rec.gen
	}
}
