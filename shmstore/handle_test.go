package shmstore

import (
	"bytes"
	"errors"
	"math"
	"testing"
)

// TestForgedHandles: every method refuses a handle that does not agree with the directory, with
// the error for that disagreement.
func TestForgedHandles(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s := create(t, small(memory))
		stale := mustPut(t, s, content(100, 1), 0)
		s.FreeUnused()
		good := mustPut(t, s, content(100, 2), Readers(0)) // a debt, so that only the handle makes Take fail
		mustPut(t, s, content(50, 3), 0)
		if good.Slot != stale.Slot {
			t.Fatal("the slot was not used again")
		}
		for _, tc := range []struct {
			name  string
			forge func(h *Handle)
			want  error
		}{
			{"zero", func(h *Handle) { *h = Handle{} }, ErrCorrupt},
			{"stale", func(h *Handle) { *h = stale }, ErrStale},
			{"another store", func(h *Handle) { h.Store++ }, ErrCorrupt},
			{"no generation", func(h *Handle) { h.Gen = 0 }, ErrCorrupt},
			{"a generation to come", func(h *Handle) { h.Gen += 5 }, ErrStale},
			{"a generation of another slot", func(h *Handle) { h.Gen++ }, ErrStale},
			{"a generation that overflows the word", func(h *Handle) { h.Gen |= 1 << 62 }, ErrCorrupt},
			{"another object's slot", func(h *Handle) { h.Slot++ }, ErrStale},
			{"an unused slot", func(h *Handle) { h.Slot = 7 }, ErrStale},
			{"no slot", func(h *Handle) { h.Slot = 8 }, ErrCorrupt},
			{"the last slot there could be", func(h *Handle) { h.Slot = math.MaxUint32 }, ErrCorrupt},
			{"larger", func(h *Handle) { h.Size++ }, ErrCorrupt},
			{"smaller", func(h *Handle) { h.Size-- }, ErrCorrupt},
			{"beyond the arena", func(h *Handle) { h.Size = minArenaBytes }, ErrCorrupt},
			{"overflowing", func(h *Handle) { h.Offset, h.Size = math.MaxUint64-10, 100 }, ErrCorrupt},
			{"overflowing size", func(h *Handle) { h.Size = math.MaxUint64 }, ErrCorrupt},
			{"shifted", func(h *Handle) { h.Offset++ }, ErrCorrupt},
			{"another codec", func(h *Handle) { h.Codec++ }, ErrCorrupt},
		} {
			h := good
			tc.forge(&h)
			_, err := s.Local().Take(h)
			wantError(t, tc.name+": Take", err, tc.want)
			_, err = s.Local().Pin(h)
			wantError(t, tc.name+": Pin", err, tc.want)
			wantError(t, tc.name+": Drop", s.Local().Drop(h), tc.want)
			if err := s.verify(h); err == nil {
				t.Errorf("%s: the store accepts it", tc.name)
			}
		}
		wantClean(t, s)
		if open := s.Local().openLeases(); open != 0 {
			t.Errorf("%d pins or debts are left of refused handles", open)
		}
		if err := s.Local().Drop(good); err != nil {
			t.Errorf("the debt of the good handle is gone: %v", err)
		}
	})
}

// TestLyingOwner: a line that agrees with the handle, and leads out of the arena, is refused:
// a reader trusts neither.
func TestLyingOwner(t *testing.T) {
	s := create(t, small(Heap))
	good := mustPut(t, s, content(100, 1), Readers(0))
	ln := &s.lines[good.Slot]
	for name, lie := range map[string]func(h *Handle){
		"longer than the arena": func(h *Handle) { h.Size = s.geo.arena - h.Offset + 1 },
		"behind the arena":      func(h *Handle) { h.Offset = s.geo.arena + 1 },
		"overflowing":           func(h *Handle) { h.Size = math.MaxUint64 },
	} {
		h := good
		lie(&h)
		ln.offset, ln.size = h.Offset, h.Size
		for verb, read := range map[string]func(Handle) (Lease, error){"Take": s.Local().Take, "Pin": s.Local().Pin} {
			l, err := read(h)
			wantError(t, name+": "+verb, err, ErrCorrupt)
			if err == nil {
				l.Release()
			}
		}
	}
	ln.offset, ln.size = good.Offset, good.Size
	if err := s.Local().Drop(good); err != nil {
		t.Error(err)
	}
}

// FuzzHandle: for every handle the result is the exact
// bytes of the object that it names, or an error of this package.
func FuzzHandle(f *testing.F) {
	s := create(f, withLarge(Heap))
	objects := make(map[Handle][]byte)
	add := func(size int) Handle {
		data := content(size, uint64(size))
		h := mustPut(f, s, data, 0)
		objects[h] = data
		return h
	}
	for i := range 4 {
		add(100 * i)
	}
	for _, seed := range []Handle{add(400), add(largeSize)} {
		seed.Store = 0 // differs from run to run: the input is relative to it
		valid, err := seed.MarshalBinary()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(valid)
		for i := range valid {
			damaged := bytes.Clone(valid)
			damaged[i] ^= 1 << (i % 8)
			f.Add(damaged)
		}
	}
	known := []error{ErrStale, ErrCorrupt, ErrCorrupt, ErrNoDebt}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Handle
		if h.UnmarshalBinary(b) != nil {
			return
		}
		h.Store ^= s.geo.store
		for name, read := range map[string]func(Handle) (Lease, error){"Take": s.Local().Take, "Pin": s.Local().Pin} {
			l, err := read(h)
			if err == nil {
				data, ok := objects[h]
				if !ok || !bytes.Equal(l.Bytes(), data) {
					t.Errorf("%s returns bytes for %v, which no put returned", name, h)
				}
				l.Release()
				continue
			}
			is := false
			for _, want := range known {
				is = is || errors.Is(err, want)
			}
			if !is {
				t.Errorf("%s: error %v is not one for a bad handle", name, err)
			}
		}
	})
}
