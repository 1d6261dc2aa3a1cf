package tlsf

import (
	"slices"
	"testing"
)

// TestCheckFindsDamage breaks every invariant by hand and expects its name.
func TestCheckFindsDamage(t *testing.T) {
	for _, tc := range []struct {
		invariant, name string
		damage          func(a *Allocator, used, free ref)
	}{
		{InvariantOverlap, "moved", func(a *Allocator, used, _ ref) { a.blocks[used].at++ }},
		{InvariantOverlap, "grown", func(a *Allocator, used, _ ref) { a.blocks[used].size++ }},
		{InvariantLost, "cut off", func(a *Allocator, used, _ ref) { a.blocks[used].behind = none }},
		{InvariantNeighbours, "no way back", func(a *Allocator, _, free ref) { a.blocks[a.blocks[free].behind].before = none }},
		{InvariantNeighbours, "in a circle", func(a *Allocator, used, _ ref) { a.blocks[used].behind = used }},
		{InvariantCoalesced, "freed behind the back", func(a *Allocator, used, _ ref) { a.blocks[used].free = true }},
		{InvariantUsed, "not found", func(a *Allocator, used, _ ref) { delete(a.used, a.blocks[used].at) }},
		{InvariantUsed, "miscounted", func(a *Allocator, _, _ ref) { a.usedUnits++ }},
		{InvariantLists, "a block in use listed", func(a *Allocator, used, _ ref) { a.list(used); a.blocks[used].free = false }},
		{InvariantLists, "unlisted", func(a *Allocator, _, free ref) { a.unlist(free); a.blocks[free].free = true }},
		{InvariantLists, "without an end", func(a *Allocator, _, free ref) { a.blocks[free].next = free }},
		{InvariantMaps, "second", func(a *Allocator, _, _ ref) { a.secondMap[3] ^= 4 }},
		{InvariantMaps, "first", func(a *Allocator, _, _ ref) { a.firstMap ^= 4 }},
		{InvariantRecords, "lost", func(a *Allocator, _, _ ref) { a.blocks = append(a.blocks, block{}) }},
	} {
		t.Run(tc.invariant+"/"+tc.name, func(t *testing.T) {
			a := New(100 * Granule)
			var offsets []int64
			for range 4 {
				offset, ok := a.Allocate(10 * Granule)
				if !ok {
					t.Fatal("no room")
				}
				offsets = append(offsets, offset)
			}
			a.Free(offsets[1])
			if found := a.Check(); len(found) != 0 {
				t.Fatal(found)
			}
			free := a.blocks[a.used[0]].behind
			tc.damage(a, a.blocks[free].behind, free)
			found := a.Check()
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Invariant == tc.invariant && v.Detail != "" }) {
				t.Errorf("Check found %v, want %q", found, tc.invariant)
			}
		})
	}
}
