package shmstore

import (
	"errors"
	"strings"
	"testing"
)

func TestQuarantine(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s := create(t, small(memory))
		liar, honest := mustDeclare(t, s, "liar"), mustDeclare(t, s, "honest")
		held := mustPut(t, s, "", content(10, 1), Readers(liar.ID()))
		free := mustPut(t, s, "", content(10, 2), Readers(honest.ID()))
		liar.ledger[held.Slot].done.Add(5)
		if err := honest.Drop(free); err != nil {
			t.Fatal(err)
		}
		if freed := s.FreeUnused(0); freed != 10 {
			t.Errorf("%d bytes came free, want those of the object the liar was not charged for", freed)
		}
		if got := s.Stats().Quarantined; got != Readers(liar.ID()) {
			t.Errorf("quarantined: %v", got)
		}
		_, err := s.Put("", nil, Readers(liar.ID()))
		wantError(t, "charging it", err, ErrQuarantined)
		mustPut(t, s, "", nil, Readers(honest.ID()))
		// Making its books look right again changes nothing.
		liar.ledger[held.Slot].done.Add(^uint32(3))
		if freed := s.FreeUnused(0); freed != 0 {
			t.Error("what a quarantined reader held came free before it was removed")
		}
		if h := s.Holders()[0]; !h.Quarantined || h.Objects != 1 || !strings.Contains(h.String(), "(liar), quarantined, holds 10 bytes") {
			t.Errorf("holder %v", h)
		}
		gone := mustPut(t, s, "", nil, 0)
		if err := s.Delete(gone); err != nil {
			t.Fatal(err)
		}
		liar.ledger[gone.Slot].pin.Add(1) // of nothing
		if h := s.Holders()[0]; h.Objects != 1 {
			t.Errorf("holder of an empty slot: %v", h)
		}
		liar.ledger[gone.Slot].pin.Add(^uint32(0))
		if err := s.RemoveReader(liar.ID()); err != nil {
			t.Fatal(err)
		}
		if freed := s.FreeUnused(0); freed != 10 {
			t.Errorf("%d bytes came free after it was removed", freed)
		}
	})
}

// TestQuarantineOfOneThatOwesTooMuch: a reader whose ledger says that it has settled so
// little that nobody can have delivered as much is left alone, and others get theirs.
func TestQuarantineOfOneThatOwesTooMuch(t *testing.T) {
	for name, lie := range map[string]uint32{"the most that is owed": maxDebts, "more than that": 3 * (maxDebts / 2), "less than nothing": 2 * maxDebts} {
		t.Run(name, func(t *testing.T) {
			s := create(t, small(Heap))
			liar, honest := mustDeclare(t, s, "liar"), mustDeclare(t, s, "honest")
			h := mustPut(t, s, "key", content(10, 1), Readers(liar.ID(), honest.ID()))
			liar.ledger[h.Slot].done.Add(1 - lie) // it owes one in truth
			both := Readers(liar.ID(), honest.ID())
			if _, ok := s.GetCached("key", both); ok {
				t.Error("it was delivered to one that owes so much")
			}
			for what, err := range map[string]error{"Touch": s.Touch(h, both), "Put": func() error { _, err := s.Put("key", nil, both); return err }()} {
				var bad *ReaderError
				if !errors.As(err, &bad) || bad.Readers != Readers(liar.ID()) || !errors.Is(err, ErrQuarantined) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if got := s.Stats().Quarantined; got != Readers(liar.ID()) {
				t.Errorf("quarantined: %v", got)
			}
			if err := s.Touch(h, Readers(honest.ID())); err != nil {
				t.Error(err)
			}
			if _, ok := s.GetCached("key", Readers(honest.ID())); !ok {
				t.Error("others do not get it any more")
			}
			for range 3 {
				l := mustLease(t, honest.Take, h)
				l.Release()
			}
			if freed := s.FreeUnused(0); freed != 0 {
				t.Error("what it may hold came free before it was removed")
			}
			if err := s.RemoveReader(liar.ID()); err != nil {
				t.Fatal(err)
			}
			if freed := s.FreeUnused(0); freed != 10 {
				t.Errorf("%d bytes came free after it was removed", freed)
			}
		})
	}
	t.Run("the local reader", func(t *testing.T) { // which is the program's own
		s := create(t, small(Heap))
		h := mustPut(t, s, "", content(10, 1), Readers(LocalReader))
		l := mustLease(t, s.Local().Take, h)
		defer l.Release()
		if err := l.Share(maxDebts - 1); err != nil {
			t.Fatal(err)
		}
		wantError(t, "one too many", s.Touch(h, Readers(LocalReader)), ErrFull)
		if got := s.Stats().Quarantined; got != 0 {
			t.Errorf("quarantined: %v", got)
		}
	})
}
