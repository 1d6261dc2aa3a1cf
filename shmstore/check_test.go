package shmstore

import (
	"slices"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// TestCheckFindsDamage breaks every invariant by hand and expects its name.
func TestCheckFindsDamage(t *testing.T) {
	const a, b = 0, 1 // the slots of the two objects
	const c, d = 2, 3 // and of two with a piece of a device
	for _, tc := range []struct {
		invariant string
		name      string
		damage    func(s *Store)
	}{
		{InvariantSuperblock, "another store id", func(s *Store) { s.directory[16]++ }},
		{InvariantSlotState, "freed behind the writer's back", func(s *Store) { s.lines[a].word.store(0) }},
		{InvariantSlotState, "left closing", func(s *Store) { s.lines[a].word.store(wordOf(s.records[a].gen, stateClosing)) }},
		{InvariantSlotState, "live without an object", func(s *Store) { s.lines[5].word.store(wordOf(1, stateLive)) }},
		{InvariantLine, "shifted", func(s *Store) { s.lines[a].offset++ }},
		{InvariantLine, "beyond its chunk", func(s *Store) { s.lines[a].size = 1000 }},
		{InvariantGeneration, "used twice", func(s *Store) {
			s.records[b].gen = s.records[a].gen
			s.lines[b].word.store(wordOf(s.records[a].gen, stateLive))
		}},
		{InvariantGeneration, "never given out", func(s *Store) {
			s.records[b].gen = 1000
			s.lines[b].word.store(wordOf(1000, stateLive))
		}},
		{InvariantChunk, "exchanged", func(s *Store) {
			s.records[a].chunk, s.records[b].chunk = s.records[b].chunk, s.records[a].chunk
		}},
		{InvariantChunk, "lost", func(s *Store) { _ = s.ring.Release(s.records[a].chunk) }},
		{InvariantFreeSlots, "a used slot listed", func(s *Store) { s.freeSlots = append(s.freeSlots, a) }},
		{InvariantFreeSlots, "a used slot listed for a free one", func(s *Store) { s.freeSlots[0] = a }},
		{InvariantFreeSlots, "listed twice", func(s *Store) {
			s.freeSlots = append(s.freeSlots, s.freeSlots[0])
			s.inUse--
		}},
		{InvariantFreeSlots, "never used", func(s *Store) { s.freeSlots[0] = 7 }},
		{InvariantFreeSlots, "lost", func(s *Store) { s.freeSlots = nil }},
		{InvariantFreeSlots, "miscounted", func(s *Store) { s.inUse++ }},
		{InvariantSettled, "owed for an empty slot", func(s *Store) { s.local.owed[s.freeSlots[0]]++ }},
		{InvariantOverdraft, "settled too much", func(s *Store) { s.accounts[1].ledger[b].done.Add(3) }},
		{InvariantCollected, "collected too much", func(s *Store) { s.local.taken[a].Add(9) }},
		{InvariantReaderTable, "another column", func(s *Store) { s.columns[1] = s.columns[0] }},
		{InvariantReaderTable, "an absent reader", func(s *Store) { s.present |= Readers(9) }},
		{InvariantReaderTable, "out of order", func(s *Store) { slices.Reverse(s.accounts) }},
		{InvariantCharges, "an absent reader", func(s *Store) { s.records[a].charged |= Readers(33) }},
		{InvariantDevices, "freed behind the store's back", func(s *Store) { s.devices[0].dev.Free(s.pieces[c].piece) }},
		{InvariantDevices, "held twice", func(s *Store) { s.pieces[c].piece = s.pieces[d].piece }},
		{InvariantDevices, "out of order", func(s *Store) { slices.Reverse(s.devices[0].slots) }},
		{InvariantDevices, "miscounted", func(s *Store) { s.devices[0].sizeBytes++ }},
		{InvariantDevices, "unlisted", func(s *Store) { s.pieces[a] = s.pieces[c] }},
		{InvariantDevices, "without an object", func(s *Store) { s.pieces = append(s.pieces, s.pieces[c]) }},
		{InvariantDevices, "of an unknown device", func(s *Store) { s.devices = nil }},
		{ringInvariantPrefix + ringbuf.InvariantHeader, "overwritten", func(s *Store) { s.arena[s.records[a].chunk.Addr-1]++ }},
	} {
		t.Run(tc.invariant+"/"+tc.name, func(t *testing.T) {
			s, err := Create(small(Heap))
			if err != nil {
				t.Fatal(err)
			}
			reader := mustDeclare(t, s, "reader")
			mustPut(t, s, content(100, 1), Readers(0))
			mustPut(t, s, content(100, 2), Readers(reader.ID()))
			device := newCountedDevice(10)
			mustReserveOn(t, s, device, 3, 0)
			mustReserveOn(t, s, device, 4, 0)
			if err := drop(s, mustPut(t, s, nil, 0)); err != nil {
				t.Fatal(err)
			}
			wantClean(t, s)
			tc.damage(s)
			found := s.Check()
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Invariant == tc.invariant && v.Detail != "" }) {
				t.Errorf("Check found %v, want %q", found, tc.invariant)
			}
		})
	}
}

func TestCheckIsBounded(t *testing.T) {
	s, err := Create(Options{Memory: Heap, ArenaBytes: 1 << 20, Slots: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for slot := range s.lines {
		s.lines[slot].word.store(wordOf(1, stateLive))
	}
	if n := len(s.Check()); n != maxViolations {
		t.Errorf("%d violations, want the bound %d", n, maxViolations)
	}
}

func TestViolationText(t *testing.T) {
	v := Violation{Invariant: InvariantLine, Detail: "x"}
	if !strings.HasPrefix(v.String(), "directory line: x") {
		t.Errorf("text %q", v)
	}
}
