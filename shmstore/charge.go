package shmstore

import (
	"fmt"
	"sync/atomic"
)

// Charge adds one debt for each reader of the set to a live object: the object stays until each reader has
// collected and settled this debt. With an empty set it checks whether the object is live. The errors are
// [ErrStale], [ErrCorrupt], [ErrClosed], [ErrUnknownReader] and [ErrQuarantined]; then nothing was charged.
// Writer only.
func (s *Store) Charge(h Handle, readers ReaderSet) error {
	if err := s.checkCharge(readers); err != nil {
		return fmt.Errorf("charge: %w", err)
	}
	slot, err := s.liveSlot(h)
	if err != nil {
		return fmt.Errorf("charge: %w", err)
	}
	for id := range readers.All() { // a lease of the local reader may be shared meanwhile
		atomic.AddUint32(&s.columns[id][slot], 1)
	}
	s.records[slot].charged |= readers
	return nil
}

// Evict frees one object now, if no reader owes for it or has pinned it, and reports whether it is gone. The
// error is [ErrClosed], or [ErrCorrupt] for a handle of another store. Writer only.
func (s *Store) Evict(h Handle) (gone bool, err error) {
	slot, err := s.liveSlot(h)
	switch {
	case err == nil:
		return s.evictSlot(slot), nil
	case s.closed.Load() || h.Store != s.geo.store:
		return false, fmt.Errorf("evict: %w", err)
	}
	return true, nil
}

// liveSlot returns the slot of a live object.
func (s *Store) liveSlot(h Handle) (slot uint32, err error) {
	switch {
	case s.closed.Load():
		return 0, ErrClosed
	case h.Store != s.geo.store || h.Slot >= uint32(len(s.lines)):
		return 0, ErrCorrupt
	case int(h.Slot) >= len(s.records) || s.records[h.Slot].gen != h.Gen,
		s.lines[h.Slot].word.load() != wordOf(h.Gen, stateLive):
		return 0, ErrStale
	}
	return h.Slot, nil
}
