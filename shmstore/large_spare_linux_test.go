package shmstore

import "testing"

// reusing is withLarge in a store that reuses.
func reusing(memory Memory) Options {
	opts := withLarge(memory)
	opts.Reuse = true
	return opts
}

// TestLargeReuse: a large object that nobody holds goes with the next one of its size,
// which gets its segment. One that is held keeps it.
func TestLargeReuse(t *testing.T) {
	for _, opts := range []Options{withLarge(Auto), reusing(Auto)} {
		s, f := create(t, opts), &forgetful{}
		s.OnLarge(f.made)
		held := mustPut(t, s, "", content(largeSize, 1), Readers(0))
		for i := range 20 {
			want := content(largeSize-i, uint64(i))
			wantBytes(t, s.Local().Take, mustPut(t, s, "", want, Readers(0)), want)
			wantClean(t, s)
		}
		if made := len(f.known); (made == 2) != opts.Reuse {
			t.Errorf("%d segments were made for 20 objects and one that is held; reuse: %t", made, opts.Reuse)
		}
		wantBytes(t, s.Local().Take, held, content(largeSize, 1))
	}
}

// TestLargeReuseReachesAll: those that are held do not keep others from being found.
func TestLargeReuseReachesAll(t *testing.T) {
	opts := reusing(Heap)
	opts.Slots, opts.MaxLargeBytes = 64, 64*3*pageBytes
	s, f := create(t, opts), &forgetful{}
	s.OnLarge(f.made)
	const held = 2*largeLooks + 1
	for range held {
		mustPut(t, s, "", content(largeSize, 1), Readers(0))
	}
	for range 100 {
		mustPut(t, s, "", content(largeSize, 2), 0)
	}
	// It comes round with every third one.
	if made, most := len(f.known), held+2*3; made > most {
		t.Errorf("%d segments were made where %d objects are held, want at most %d", made, held, most)
	}
}

// TestSparesGiveWay: segments without an object go when there is no room for others, when
// memory is short, and with FreeUnused, Clear and Close; and nothing that is held goes in
// their place.
func TestSparesGiveWay(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(t *testing.T, s *Store)
		left int64 // pages
	}{
		"room": {func(t *testing.T, s *Store) {
			mustPut(t, s, "", content(2*pageBytes, 4), Readers(0))
		}, 3 + 3 + 2},
		"memory": {func(t *testing.T, s *Store) {
			looks := 0
			scarce(t, func() int64 {
				if looks++; looks == 1 {
					return 0
				}
				return 1 << 30
			})
			mustPut(t, s, "", content(pageBytes-1, 4), Readers(0))
		}, 3 + 1},
		"FreeUnused": {func(_ *testing.T, s *Store) { s.FreeUnused(0) }, 3},
		"Clear":      {func(_ *testing.T, s *Store) { s.Clear() }, 3},
		"a slot":     {func(t *testing.T, s *Store) { mustPut(t, s, "", content(10, 4), Readers(0)) }, 9},
	} {
		s := create(t, reusing(Auto))
		held := mustPut(t, s, "", content(largeSize, 1), Readers(0))
		spare := []Handle{mustPut(t, s, "", content(largeSize, 2), Readers(0)), mustPut(t, s, "", content(largeSize, 3), Readers(0))}
		for i, h := range spare {
			wantBytes(t, s.Local().Take, h, content(largeSize, uint64(2+i)))
			if err := s.Delete(h); err != nil {
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
