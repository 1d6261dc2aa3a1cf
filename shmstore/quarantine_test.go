package shmstore

import (
	"strings"
	"testing"
)

func TestQuarantine(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s := create(t, small(memory))
		liar, honest := mustDeclare(t, s, "liar"), mustDeclare(t, s, "honest")
		held := mustPut(t, s, content(10, 1), Readers(liar.ID()))
		free := mustPut(t, s, content(10, 2), Readers(honest.ID()))
		liar.ledger[held.Slot].done.Add(5)
		if err := honest.Drop(free); err != nil {
			t.Fatal(err)
		}
		if freed := s.FreeUnused(); freed != 10 {
			t.Errorf("%d bytes were freed, want those of the object for which the liar was not charged", freed)
		}
		if got := s.Stats().Quarantined; got != Readers(liar.ID()) {
			t.Errorf("quarantined: %v", got)
		}
		_, err := s.Put(nil, Readers(liar.ID()))
		wantError(t, "charging it", err, ErrQuarantined)
		mustPut(t, s, nil, Readers(honest.ID()))
		// Correct counts in its ledger change nothing now.
		liar.ledger[held.Slot].done.Add(^uint32(3))
		if freed := s.FreeUnused(); freed != 0 {
			t.Error("an object of a quarantined reader was freed before its removal")
		}
		if h := s.Holders()[0]; !h.Quarantined || h.Objects != 1 || !strings.Contains(h.String(), "(liar), quarantined, holds 10 bytes") {
			t.Errorf("holder %v", h)
		}
		gone := mustPut(t, s, nil, 0)
		if err := drop(s, gone); err != nil {
			t.Fatal(err)
		}
		liar.ledger[gone.Slot].pin.Add(1) // a pin on an empty slot
		if h := s.Holders()[0]; h.Objects != 1 {
			t.Errorf("holder of an empty slot: %v", h)
		}
		liar.ledger[gone.Slot].pin.Add(^uint32(0))
		if err := s.RemoveReader(liar.ID()); err != nil {
			t.Fatal(err)
		}
		if freed := s.FreeUnused(); freed != 10 {
			t.Errorf("%d bytes were freed after its removal", freed)
		}
	})
}
