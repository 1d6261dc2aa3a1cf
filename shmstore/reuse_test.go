package shmstore

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
)

// passBy puts an object, and takes and releases it: then no reader holds it.
func passBy(t *testing.T, s *Store, sizeBytes int) Handle {
	t.Helper()
	l := hold(t, s, sizeBytes)
	h := l.Handle()
	l.Release()
	return h
}

// hold puts an object, and takes it.
func hold(t *testing.T, s *Store, sizeBytes int) Lease {
	t.Helper()
	r, err := s.Reserve(sizeBytes, codec.IDRaw, 0)
	if err != nil {
		t.Fatal(err)
	}
	h, err := r.Commit(sizeBytes, 1)
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Local().Take(h)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestReuse: with the option, the next reservation evicts a settled object and gets
// its space. A held object stays.
func TestReuse(t *testing.T) {
	for _, opts := range []Options{{}, {Reuse: true}} {
		opts.ArenaBytes, opts.Memory = 1<<20, Heap
		s := create(t, opts)
		taken := hold(t, s, 1000)
		pinned, err := s.Local().Pin(passBy(t, s, 1000))
		if err != nil {
			t.Fatal(err)
		}
		before := passBy(t, s, 1000)
		after := passBy(t, s, 1000)
		if (after.Offset == before.Offset) != opts.Reuse {
			t.Errorf("%+v: an object lies at %d, and the previous settled one lay at %d", opts, after.Offset, before.Offset)
		}
		if l, err := s.Local().Pin(before); (err != nil) != opts.Reuse {
			t.Errorf("%+v: a settled object after the next reservation: %v", opts, err)
		} else if err == nil {
			l.Release()
		}
		for _, l := range []Lease{taken, pinned} {
			if h := l.Handle(); s.records[h.Slot].gen != h.Gen {
				t.Errorf("%+v: %v is gone, although it is held", opts, h)
			}
			l.Release()
		}
	}
}

// TestReuseReachesAll: settled objects do not pile up behind held ones, however many those
// are.
func TestReuseReachesAll(t *testing.T) {
	const islands, rounds = 300, 3000
	s := create(t, Options{ArenaBytes: 8 << 20, Memory: Heap, Reuse: true})
	var held []Lease
	for range islands {
		held = append(held, hold(t, s, 1000))
	}
	for range rounds {
		passBy(t, s, 1000)
		if piled := s.Stats().Objects - islands; piled > islands/3 {
			t.Fatalf("%d settled objects beside %d held ones", piled, islands)
		}
	}
	for _, l := range held {
		l.Release()
	}
}

// TestReuseKeepsUpWithExtents: each extent takes the space of earlier extents that were
// released.
func TestReuseKeepsUpWithExtents(t *testing.T) {
	const n, rounds = 64, 100
	s := create(t, Options{ArenaBytes: 8 << 20, Memory: Heap, Reuse: true})
	var extent []Reservation
	for range rounds {
		var err error
		if extent, err = s.ReserveExtent(extent[:0], n, 1000, codec.IDRaw, 0); err != nil {
			t.Fatal(err)
		}
		for i := range extent {
			if _, err := extent[i].Commit(1000, 0); err != nil {
				t.Fatal(err)
			}
		}
		if objects := s.Stats().Objects; objects > 2*n {
			t.Fatalf("%d settled objects, and extents of %d", objects, n)
		}
	}
}

// A mix gives the size of the next object, and how many others are put before it is
// released.
type mix func(r *rand.Rand) (sizeBytes, life int)

var mixes = map[string]mix{
	"all alike": func(r *rand.Rand) (int, int) {
		return int(math.Exp(r.NormFloat64()) * 3e3), 1 + int(r.ExpFloat64()*150)
	},
	"some that stay": func(r *rand.Rand) (int, int) {
		life := 20
		if r.IntN(20) == 0 {
			life = 1000
		}
		return int(math.Exp(r.NormFloat64()*1.5) * 1500), life
	},
}

// TestReuseScattersLess: an object finds space in one piece at least as often as
// in a store without Reuse.
func TestReuseScattersLess(t *testing.T) {
	for name, next := range mixes {
		t.Run(name, func(t *testing.T) {
			inTurn, reused := unplaced(t, next, false), unplaced(t, next, true)
			if reused > inTurn || inTurn == 0 {
				t.Errorf("%d objects found no space, and %d without Reuse", reused, inTurn)
			}
		})
	}
}

// unplaced counts the objects that find no space in one piece, in a store that is at most three
// quarters full.
func unplaced(t *testing.T, next mix, reuse bool) (failed int) {
	t.Helper()
	const arena, objects = 1 << 20, 3000
	s := create(t, Options{ArenaBytes: arena, Memory: Heap, Reuse: reuse})
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same each time
	ends := make(map[int][]Lease)
	held := 0
	release := func(index int) {
		for _, l := range ends[index] {
			held -= len(l.Bytes())
			l.Release()
		}
		delete(ends, index)
	}
	for i := range objects {
		release(i)
		size, life := next(r)
		size = min(size, arena/4)
		if held+size > arena/4*3 {
			continue
		}
		reservation, err := s.Reserve(size, codec.IDRaw, 0)
		if err != nil {
			failed++
			continue
		}
		h, err := reservation.Commit(size, 1)
		if err != nil {
			t.Fatal(err)
		}
		l, err := s.Local().Take(h)
		if err != nil {
			t.Fatal(err)
		}
		ends[i+life] = append(ends[i+life], l)
		held += size
	}
	for index := range ends {
		release(index)
	}
	return failed
}
