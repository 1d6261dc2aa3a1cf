package shmstore

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSpanAgreesWithSlots compares the writer's results for a batch, along
// the span or slot by slot, with the ledger entries: for neighbours and for
// slots far apart, with other objects held in between.
func TestSpanAgreesWithSlots(t *testing.T) {
	const slots = 3 * maxCandidates
	all := make([]uint32, slots)
	for slot := range all {
		all[slot] = uint32(slot)
	}
	rapid.Check(t, func(t *rapid.T) {
		a := &account{id: 1, owed: make(debtColumn, slots), ledger: make([]entry, slots)}
		s := &Store{accounts: []*account{a}}
		for range rapid.IntRange(0, 3).Draw(t, "held") {
			slot := rapid.IntRange(0, slots-1).Draw(t, "slot")
			if rapid.Bool().Draw(t, "pin") {
				a.ledger[slot].pin.Store(1)
			} else {
				a.owed[slot] = 1
			}
		}
		n := rapid.IntRange(0, maxCandidates).Draw(t, "candidates")
		first := rapid.IntRange(0, slots-n).Draw(t, "first")
		if rapid.Bool().Draw(t, "neighbours") {
			for i := range n {
				s.scratch.slots[i] = uint32(first + n - 1 - i)
			}
		} else {
			copy(s.scratch.slots[:n], rapid.Permutation(all).Draw(t, "order"))
		}
		mask := rapid.Uint64().Draw(t, "mask") & (1<<n - 1)
		s.scratch.setSpan(mask)

		var owing, pinned uint64
		for i, slot := range s.scratch.slots[:n] {
			if mask>>i&1 == 0 {
				continue
			}
			owing |= uint64(a.openDebts(slot)) << i
			pinned |= uint64(a.ledger[slot].pin.Load()) << i
		}
		if got := s.unsettled(mask); got != owing {
			t.Errorf("unsettled candidates: %b, want %b", got, owing)
		}
		if got := s.pinned(mask); got != pinned {
			t.Errorf("pinned candidates: %b, want %b", got, pinned)
		}
	})
}
