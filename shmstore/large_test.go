package shmstore

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
)

const largeSize = 3*pageBytes - 100

// withLarge is a small store, with objects of up to three pages beside the arena: three
// of them fit.
func withLarge(memory Memory) Options {
	return Options{
		Memory: memory, ArenaBytes: minArenaBytes, Slots: 8,
		LargeObjectBytes: 1 << 10, MaxObjectBytes: 3 * pageBytes, MaxLargeBytes: 9 * pageBytes,
	}
}

// wantLarge compares the figures.
func wantLarge(t testing.TB, s *Store, objects int, sizeBytes int64) {
	t.Helper()
	if got := s.Stats(); got.LargeObjects != objects || got.LargeBytes != sizeBytes {
		t.Errorf("%d large objects with %d bytes, want %d with %d", got.LargeObjects, got.LargeBytes, objects, sizeBytes)
	}
}

// wantBytes takes an object and compares it.
func wantBytes(t testing.TB, take func(Handle) (Lease, error), h Handle, want []byte) {
	t.Helper()
	l := mustLease(t, take, h)
	if !bytes.Equal(l.Bytes(), want) || cap(l.Bytes()) != len(want) || l.Handle() != h {
		t.Errorf("%d bytes of %v by %v, or others than were put", len(l.Bytes()), h, l.Handle())
	}
	l.Release()
}

// TestLargeObjects: every operation on an object works for a
// large one.
func TestLargeObjects(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s := create(t, withLarge(memory))
		reader := mustDeclare(t, s, "reader")
		want := content(largeSize, 1)
		for name, put := range map[string]func() (Handle, error){
			"Put": func() (Handle, error) { return s.Put(want, Readers(0, reader.ID())) },
			"Reserve": func() (Handle, error) {
				r := mustReserve(t, s, 3*pageBytes, Readers(reader.ID()))
				copy(r.Bytes(), want)
				return r.Commit(len(want), 1)
			},
			"ReserveExtent": func() (Handle, error) {
				rs, err := s.ReserveExtent(nil, 5, len(want), codec.IDRaw, Readers(0, reader.ID()))
				if err != nil || len(rs) != 1 {
					t.Fatalf("an extent of %d, %v, want one at a time", len(rs), err)
				}
				copy(rs[0].Bytes(), want)
				return rs[0].Commit(len(want), 0)
			},
		} {
			h, err := put()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !IsLarge(h) || h.Size != uint64(len(want)) {
				t.Errorf("%s: %v is not large", name, h)
			}
			wantLarge(t, s, 1, 3*pageBytes)
			wantClean(t, s)
			wantBytes(t, s.Local().Take, h, want)
			wantBytes(t, reader.Take, h, want)
			wantBytes(t, reader.Pin, h, want)
			wantBytes(t, s.Local().Pin, h, want)
			_, err = s.Local().Take(h)
			wantError(t, name+": a second Take", err, ErrNoDebt)
			l := mustLease(t, s.Local().Pin, h)
			if err := l.Share(1); err != nil {
				t.Error(err)
			}
			l.Release()
			if holders := s.Holders(); len(holders) != 1 || holders[0].Bytes < int64(len(want)) {
				t.Errorf("%s: holders %v", name, holders)
			}
			if err := s.Local().Drop(h); err != nil {
				t.Error(err)
			}
			if freed := s.FreeUnused(); freed < int64(len(want)) {
				t.Errorf("%s: %d bytes were freed", name, freed)
			}
			wantLarge(t, s, 0, 0)
			for verb, take := range map[string]func(Handle) (Lease, error){"Take": s.Local().Take, "Pin": s.Local().Pin} {
				_, err = take(h)
				wantError(t, name+": "+verb+" afterwards", err, ErrStale)
			}
			wantError(t, name+": Drop afterwards", reader.Drop(h), ErrStale)
		}
	})
}

// TestLargeEviction: the oldest object that no reader holds is evicted first. A large object evicts no object of
// the arena, and an object of the arena no large one.
func TestLargeEviction(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s := create(t, withLarge(memory))
		inArena := mustPut(t, s, content(1000, 9), 0)
		var hs []Handle
		for i := range 3 {
			hs = append(hs, mustPut(t, s, content(largeSize, uint64(i)), 0))
		}
		held := mustLease(t, s.Local().Pin, hs[0])
		hs = append(hs, mustPut(t, s, content(largeSize, 3), 0))
		wantLarge(t, s, 3, 9*pageBytes)
		if !bytes.Equal(held.Bytes(), content(largeSize, 0)) {
			t.Error("a large object changed under a pin")
		}
		_, err := s.Local().Pin(hs[1])
		wantError(t, "the oldest object that no reader held", err, ErrStale)
		for i := range 6 { // more than the arena holds
			mustPut(t, s, content(900, uint64(i)), 0)
		}
		for _, i := range []int{0, 2, 3} {
			wantBytes(t, s.Local().Pin, hs[i], content(largeSize, uint64(i)))
		}
		_, err = s.Local().Pin(inArena)
		wantError(t, "the oldest in the arena", err, ErrStale)
		held.Release()
	})
}

// TestLargeFull: held objects stay, and the error names the segments as the
// resource that ran out.
func TestLargeFull(t *testing.T) {
	s := create(t, withLarge(Auto))
	for i := range 3 {
		mustPut(t, s, content(largeSize, uint64(i)), Readers(0))
	}
	before := s.Stats()
	_, err := s.Put(content(largeSize, 4), 0)
	var full *FullError
	if !errors.As(err, &full) || full.Resource != ResourceLarge || full.LargeBytes != 9*pageBytes || full.NeededBytes != largeSize {
		t.Errorf("a fourth: %v", err)
	}
	_, err = s.Reserve(3*pageBytes+1, codec.IDRaw, 0)
	wantError(t, "more than may be", err, ErrTooLarge)
	before.FullTotal++
	if after := s.Stats(); after != before {
		t.Errorf("the refusals left %+v, want %+v", after, before)
	}
	mustPut(t, s, content(1000, 5), 0) // the arena has space
}

// TestLargeTakesSlots: with all slots in use, objects of the arena evict large ones,
// and large ones evict those of the arena.
func TestLargeTakesSlots(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		opts := withLarge(memory)
		opts.Slots = 2
		s := create(t, opts)
		for i := range 2 {
			mustPut(t, s, content(largeSize, uint64(i)), 0)
		}
		held := mustPut(t, s, content(10, 2), Readers(0))
		wantLarge(t, s, 1, 3*pageBytes)
		mustPut(t, s, content(10, 3), 0)
		wantLarge(t, s, 0, 0)
		last := mustPut(t, s, content(largeSize, 4), Readers(0))
		var full *FullError
		if _, err := s.Put(content(largeSize, 5), 0); !errors.As(err, &full) || full.Resource != ResourceSlots {
			t.Errorf("no slot: %v", err)
		}
		wantBytes(t, s.Local().Take, held, content(10, 2))
		wantBytes(t, s.Local().Take, last, content(largeSize, 4))
	})
}

// TestDropSegmentsKeepsOwnSegments: DropSegments in the owner's process releases no segment that is being filled.
func TestDropSegmentsKeepsOwnSegments(t *testing.T) {
	s := create(t, withLarge(Heap))
	r := mustReserve(t, s, largeSize, 0)
	s.Local().DropSegments()
	copy(r.Bytes(), content(largeSize, 1))
	wantBytes(t, s.Local().Pin, mustCommit(t, r, largeSize, 0), content(largeSize, 1))
}

// TestLargeAborted: an aborted reservation frees space for the next.
func TestLargeAborted(t *testing.T) {
	s := create(t, withLarge(Auto))
	var rs []Reservation
	for range 3 {
		rs = append(rs, mustReserve(t, s, largeSize, Readers(0)))
	}
	_, err := s.Reserve(largeSize, codec.IDRaw, 0)
	var full *FullError
	if !errors.As(err, &full) || full.Reserved != 3 || full.ReservedBytes != 3*largeSize {
		t.Errorf("three reservations: %v", err)
	}
	wantClean(t, s)
	rs[1].Abort()
	r := mustReserve(t, s, largeSize, 0)
	wantLarge(t, s, 3, 9*pageBytes)
	for _, open := range []Reservation{rs[0], rs[2], r} {
		open.Abort()
	}
	if left := freeAll(s); left != 0 {
		t.Errorf("%d objects are left", left)
	}
	wantLarge(t, s, 0, 0)
}

// TestLargeClose: leases keep the memory, and Close unmaps it.
func TestLargeClose(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		descriptors := openFiles(t)
		s, err := Create(withLarge(memory))
		if err != nil {
			t.Fatal(err)
		}
		l := mustLease(t, s.Local().Take, mustPut(t, s, content(largeSize, 1), Readers(0)))
		mustPut(t, s, content(largeSize, 2), 0)
		wantError(t, "Close with a lease", s.Close(), ErrBusy)
		if !bytes.Equal(l.Bytes(), content(largeSize, 1)) {
			t.Error("closing the store took the bytes from under a lease")
		}
		l.Release()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if got := openFiles(t); got != descriptors {
			t.Errorf("%d descriptors are open, %d were before", got, descriptors)
		}
	})
}

func TestLargeOptions(t *testing.T) {
	page := int64(os.Getpagesize())
	for _, tc := range []struct {
		name                       string
		opts                       Options
		inArena, maxObject, inSegs int64
	}{
		{name: "defaults", inArena: 16 << 20, maxObject: 64 << 20, inSegs: 64 << 20},
		{name: "none", opts: Options{MaxLargeBytes: -1}, inArena: 16 << 20, maxObject: 16 << 20},
		{name: "an object in the arena", opts: Options{MaxObjectBytes: 20 << 20}, inArena: 20 << 20, maxObject: 20 << 20, inSegs: 64 << 20},
		{name: "an object above the arena", opts: Options{MaxObjectBytes: 65 << 20, MaxLargeBytes: 1 << 30}, inArena: 16 << 20, maxObject: 65 << 20, inSegs: 1 << 30},
		{name: "no whole pages", opts: Options{ArenaBytes: 10000, Memory: Heap}, inArena: 2500, maxObject: 8192, inSegs: 10000},
		{name: "no whole pages, shared", opts: Options{ArenaBytes: 2*page + 1, Memory: Shared}, inArena: 3 * page / 4, maxObject: 3 * page, inSegs: 3 * page},
	} {
		opts := tc.opts.WithDefaults()
		if err := tc.opts.Validate(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if opts.LargeObjectBytes != tc.inArena || opts.MaxObjectBytes != tc.maxObject || max(opts.MaxLargeBytes, 0) != tc.inSegs {
			t.Errorf("%s: %+v", tc.name, opts)
		}
	}
	for name, opts := range map[string]Options{
		"large ones in the arena": {LargeObjectBytes: 65 << 20},
		"negative":                {LargeObjectBytes: -1},
		"without segments":        {LargeObjectBytes: 1 << 20, MaxObjectBytes: 2 << 20, MaxLargeBytes: -1},
		"too few pages":           {MaxObjectBytes: 128<<20 + 1, MaxLargeBytes: 128<<20 + 1},
		"more than there can be":  {MaxLargeBytes: 1 << 47},
	} {
		_, err := Create(opts)
		wantError(t, name, err, ErrOptions)
	}
}

// TestLargeForged: a handle of an object of the arena with the offset of a large one, and the
// other way round, gets an error.
func TestLargeForged(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s := create(t, withLarge(memory))
		inArena := mustPut(t, s, content(100, 1), Readers(0))
		large := mustPut(t, s, content(largeSize, 2), Readers(0))
		for _, tc := range []struct {
			name  string
			h     Handle
			forge func(h *Handle)
			want  error
		}{
			{"said to be large", inArena, func(h *Handle) { h.Offset = largeOffset }, ErrCorrupt},
			{"said to be in the arena", large, func(h *Handle) { h.Offset, h.Size = 64, 100 }, ErrCorrupt},
			{"at the beginning", large, func(h *Handle) { h.Offset = 0 }, ErrCorrupt},
			{"larger", large, func(h *Handle) { h.Size++ }, ErrCorrupt},
			{"smaller", large, func(h *Handle) { h.Size-- }, ErrCorrupt},
			{"beyond its segment", large, func(h *Handle) { h.Size = 3*pageBytes + 1 }, ErrCorrupt},
			{"beyond everything", large, func(h *Handle) { h.Size = 1 << 63 }, ErrCorrupt},
			{"another codec", large, func(h *Handle) { h.Codec++ }, ErrCorrupt},
			{"another slot", large, func(h *Handle) { h.Slot = inArena.Slot }, ErrStale},
			{"no slot", large, func(h *Handle) { h.Slot = 1 << 20 }, ErrCorrupt},
			{"no generation", large, func(h *Handle) { h.Gen = 0 }, ErrCorrupt},
			{"a generation that overflows the word", large, func(h *Handle) { h.Gen |= 1 << 62 }, ErrCorrupt},
			{"another generation", large, func(h *Handle) { h.Gen += 7 }, ErrStale},
			{"another store", large, func(h *Handle) { h.Store++ }, ErrCorrupt},
		} {
			h := tc.h
			tc.forge(&h)
			for verb, take := range map[string]func(Handle) (Lease, error){"Take": s.Local().Take, "Pin": s.Local().Pin} {
				_, err := take(h)
				wantError(t, tc.name+": "+verb, err, tc.want)
			}
			if s.Local().Drop(h) == nil {
				t.Errorf("%s: accepted", tc.name)
			}
			if _, _, err := s.LargeSegment(h); err == nil {
				t.Errorf("%s: LargeSegment accepts it", tc.name)
			}
		}
		wantBytes(t, s.Local().Take, large, content(largeSize, 2))
		wantBytes(t, s.Local().Take, inArena, content(100, 1))
		_, _, err := s.LargeSegment(inArena)
		wantError(t, "the segment of an object in the arena", err, ErrUnsupported)
		if memory == Heap {
			_, _, err := s.LargeSegment(large)
			wantError(t, "the segment of an object on the heap", err, ErrUnsupported)
		}
		wantError(t, "AddSegment in the owner's process", s.Local().AddSegment(large, -1), ErrUnsupported)
		s.Local().DropSegments()
	})
}

// TestCheckFindsLargeDamage damages the records of large objects.
func TestCheckFindsLargeDamage(t *testing.T) {
	for name, damage := range map[string]func(s *Store){
		"a byte too many":           func(s *Store) { s.largeBytes++ },
		"not listed":                func(s *Store) { s.largeSlots = s.largeSlots[1:] },
		"listed out of order":       func(s *Store) { slices.Reverse(s.largeSlots) },
		"no segment":                func(s *Store) { s.large.remove(s.records[0].gen) },
		"a segment too many":        func(s *Store) { s.large.objects[99] = largeObject{segment: &segment{}} },
		"released":                  func(s *Store) { s.large.objects[s.records[0].gen].segment.released = true },
		"said to be in the arena":   func(s *Store) { s.lines[0].offset = 64 },
		"larger than was asked for": func(s *Store) { s.lines[0].size = largeSize + 1 },
		"more than there may be":    func(s *Store) { s.maxLarge = pageBytes },
		"more to spare than there may be": func(s *Store) {
			s.spares.keep(largeObject{segment: &segment{data: make([]byte, 9*pageBytes)}})
		},
		"a spare byte too many":        func(s *Store) { s.spares.sizeBytes++ },
		"a spare one that is released": func(s *Store) { s.spares.keep(largeObject{segment: &segment{released: true}}) },
	} {
		s, err := Create(withLarge(Heap))
		if err != nil {
			t.Fatal(err)
		}
		mustPut(t, s, content(largeSize, 1), 0)
		mustPut(t, s, content(largeSize, 2), 0)
		wantClean(t, s)
		damage(s)
		if found := s.Check(); !slices.ContainsFunc(found, func(v Violation) bool { return v.Invariant == InvariantLarge && v.Detail != "" }) {
			t.Errorf("%s: Check found %v, want %q", name, found, InvariantLarge)
		}
	}
}

// TestEveryAllowedSizeFits: an empty store has space for each object up to
// its MaxObjectBytes, with any options.
func TestEveryAllowedSizeFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		arena := rapid.Int64Range(minArenaBytes, 4*minArenaBytes).Draw(t, "arena")
		// near draws a size that is often at an edge.
		near := func(name string) int64 {
			return rapid.SampledFrom([]int64{0, 1, arena / 2, arena - 65, arena - 64, arena - 63, arena - 1, arena, 2 * arena}).Draw(t, name)
		}
		s, err := Create(Options{
			Memory: Heap, ArenaBytes: arena, Slots: 1,
			MaxObjectBytes: near("largest"), LargeObjectBytes: near("largest in the arena"),
			MaxLargeBytes: rapid.SampledFrom([]int64{-1, 0, pageBytes, arena, 3 * arena}).Draw(t, "large"),
		})
		if errors.Is(err, ErrOptions) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int64{s.MaxObjectBytes(), rapid.Int64Range(0, s.MaxObjectBytes()).Draw(t, "size")} {
			r, err := s.Reserve(int(size), codec.IDRaw, 0)
			if err != nil {
				t.Fatalf("%d bytes, of at most %d: %v", size, s.MaxObjectBytes(), err)
			}
			r.Abort()
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
