package shmstore

import "testing"

// reusing is withLarge with Reuse.
func reusing(memory Memory) Options {
	opts := withLarge(memory)
	opts.Reuse = true
	return opts
}

// TestLargeReuse: the next large object of the same size evicts a settled one,
// and gets its segment. A held object keeps its segment.
func TestLargeReuse(t *testing.T) {
	for _, opts := range []Options{withLarge(Auto), reusing(Auto)} {
		s, f := create(t, opts), &forgetful{}
		s.OnLarge(f.made)
		held := mustPut(t, s, content(largeSize, 1), Readers(0))
		for i := range 20 {
			want := content(largeSize-i, uint64(i))
			wantBytes(t, s.Local().Take, mustPut(t, s, want, Readers(0)), want)
			wantClean(t, s)
		}
		if made := len(f.known); (made == 2) != opts.Reuse {
			t.Errorf("%d segments were made for 20 objects and one that is held; reuse: %t", made, opts.Reuse)
		}
		wantBytes(t, s.Local().Take, held, content(largeSize, 1))
	}
}

// TestLargeReuseReachesAll: held objects do not keep settled ones from being found.
func TestLargeReuseReachesAll(t *testing.T) {
	opts := reusing(Heap)
	opts.Slots, opts.MaxLargeBytes = 64, 64*3*pageBytes
	s, f := create(t, opts), &forgetful{}
	s.OnLarge(f.made)
	const held = 2*largeCandidates + 1
	for range held {
		mustPut(t, s, content(largeSize, 1), Readers(0))
	}
	for range 100 {
		mustPut(t, s, content(largeSize, 2), 0)
	}
	// Every third object completes a round of the checks.
	if made, most := len(f.known), held+2*3; made > most {
		t.Errorf("%d segments were made where %d objects are held, want at most %d", made, held, most)
	}
}

// TestSparesAreDroppedFirst: segments without an object are dropped when there is no space for others, when
// memory is short, and with FreeUnused and Close; and no held object is evicted in
// their place.
func TestSparesAreDroppedFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(t *testing.T, s *Store)
		left int64 // pages
	}{
		"room": {func(t *testing.T, s *Store) {
			mustPut(t, s, content(2*pageBytes, 4), Readers(0))
		}, 3 + 3 + 2},
		"memory": {func(t *testing.T, s *Store) {
			looks := 0
			scarce(t, func() int64 {
				if looks++; looks == 1 {
					return 0
				}
				return 1 << 30
			})
			mustPut(t, s, content(pageBytes-1, 4), Readers(0))
		}, 3 + 1},
		"FreeUnused": {func(_ *testing.T, s *Store) { s.FreeUnused() }, 3},
		"a slot":     {func(t *testing.T, s *Store) { mustPut(t, s, content(10, 4), Readers(0)) }, 9},
	} {
		s := create(t, reusing(Auto))
		held := mustPut(t, s, content(largeSize, 1), Readers(0))
		spare := []Handle{mustPut(t, s, content(largeSize, 2), Readers(0)), mustPut(t, s, content(largeSize, 3), Readers(0))}
		for i, h := range spare {
			wantBytes(t, s.Local().Take, h, content(largeSize, uint64(2+i)))
			if err := drop(s, h); err != nil {
				t.Fatal(err)
			}
		}
		wantLarge(t, s, 1, 9*pageBytes)
		tc.end(t, s)
		if got := s.Stats().LargeBytes; got != tc.left*pageBytes {
			t.Errorf("%s: %d pages are left, want %d", name, got/pageBytes, tc.left)
		}
		wantClean(t, s)
		wantBytes(t, s.Local().Take, held, content(largeSize, 1))
	}
}

// TestLargeReuseOfNewLengths: objects of new lengths find the segments of earlier ones,
// and have the length that was reserved.
func TestLargeReuseOfNewLengths(t *testing.T) {
	for _, reuse := range []bool{true, false} {
		const most = 60
		opts := Options{
			Memory: Auto, ArenaBytes: minArenaBytes, Slots: 8, Reuse: reuse,
			LargeObjectBytes: 1 << 10, MaxObjectBytes: most * pageBytes, MaxLargeBytes: 4 * most * pageBytes,
		}
		s, f := create(t, opts), &forgetful{}
		s.OnLarge(f.made)
		const objects = 50
		last, before := mustPut(t, s, content(50*pageBytes, 0), Readers(0)), 50*pageBytes
		for i := range objects {
			size := 48*pageBytes + i*37%12*pageBytes + i
			h := mustPut(t, s, content(size, uint64(i)), Readers(0))
			wantBytes(t, s.Local().Take, last, content(before, uint64(max(i-1, 0))))
			wantClean(t, s)
			last, before = h, size
		}
		if made := len(f.known); (made <= objects/5) != reuse {
			t.Errorf("%d segments were made for %d objects of which two are held; reuse: %t", made, objects, reuse)
		}
	}
}

// TestLargeReuseKeepsCapacity: as many objects fit although their segments are larger than the objects,
// when the segments are new, when they are spare, and when there is no memory for them.
func TestLargeReuseKeepsCapacity(t *testing.T) {
	const objects, needed = 8, 33 * pageBytes
	opts := Options{
		Memory: Auto, ArenaBytes: minArenaBytes, Slots: objects,
		LargeObjectBytes: 1 << 10, MaxObjectBytes: needed, MaxLargeBytes: objects * needed, Reuse: true,
	}
	s, f := create(t, opts), &forgetful{}
	s.OnLarge(f.made)
	short := true
	scarce(t, func() int64 {
		if short && len(f.known) == 1 {
			short = false
			return 0
		}
		return 1 << 30
	})
	for round := range uint64(3) {
		var all []Handle
		for i := range uint64(objects) {
			all = append(all, mustPut(t, s, content(needed, round+i), Readers(0)))
			wantClean(t, s)
		}
		for i, h := range all {
			wantBytes(t, s.Local().Take, h, content(needed, round+uint64(i)))
		}
		wantClean(t, s)
		for _, h := range all[:round*objects/2] { // the segments are larger than the freed objects
			if err := drop(s, h); err != nil {
				t.Fatal(err)
			}
			wantClean(t, s)
		}
	}
	if rounded, exact := len(f.known[0]), len(f.known[1]); rounded <= needed || exact != needed {
		t.Errorf("segments of %d bytes, and of %d where memory was short, for %d", rounded, exact, needed)
	}
}

// TestSpareIsDroppedWithoutSpace: if an object gets a spare segment and evicts another object for
// a slot, the segment of that one is kept only if there is space for both.
func TestSpareIsDroppedWithoutSpace(t *testing.T) {
	const objects, needed, rounded = largeCandidates + 2, 33, 36 // pages
	opts := Options{
		Memory: Auto, ArenaBytes: minArenaBytes, Slots: objects + 1, Reuse: true,
		LargeObjectBytes: 1 << 10, MaxObjectBytes: rounded * pageBytes, MaxLargeBytes: ((objects-1)*needed + rounded) * pageBytes,
	}
	s := create(t, opts)
	var all []Handle
	for i := range uint64(objects) {
		all = append(all, mustPut(t, s, content(needed*pageBytes, i), Readers(0)))
	}
	wantBytes(t, s.Local().Take, all[0], content(needed*pageBytes, 0))
	if err := drop(s, all[0]); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		mustPut(t, s, content(10, 0), Readers(0))
	}
	wantLarge(t, s, objects-1, opts.MaxLargeBytes)
	last := 1 + (s.nextLargeReclaim+largeCandidates)%(objects-1) // the object that is not checked
	wantBytes(t, s.Local().Take, all[last], content(needed*pageBytes, uint64(last)))
	mustPut(t, s, content(rounded*pageBytes, 1), Readers(0))
	wantLarge(t, s, objects-1, ((objects-2)*needed+rounded)*pageBytes)
	wantClean(t, s)
}
