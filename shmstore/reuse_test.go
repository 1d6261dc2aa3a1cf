package shmstore

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
)

// passBy puts an object, and takes and releases it: nobody holds it any more.
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

// TestReuse: an object that nobody holds goes with the next reservation, which gets
// its room, where objects are for those alone who hold them. One that is held stays.
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
			t.Errorf("%+v: an object lies at %d, and the one before, which nobody held, lay at %d", opts, after.Offset, before.Offset)
		}
		if l, err := s.Local().Pin(before); (err != nil) != opts.Reuse {
			t.Errorf("%+v: an object that nobody held, behind the next one: %v", opts, err)
		} else if err == nil {
			l.Release()
		}
		for _, l := range []Lease{taken, pinned} {
			if h := l.Handle(); s.records[h.Slot].gen != h.Gen {
				t.Errorf("%+v: %v is gone, and is held", opts, h)
			}
			l.Release()
		}
	}
}

// TestReuseReachesAll: however many objects stay, those that nobody holds do not pile
// up behind them.
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
			t.Fatalf("%d objects that nobody holds beside %d that stay", piled, islands)
		}
	}
	for _, l := range held {
		l.Release()
	}
}

// TestReuseKeepsUpWithExtents: each extent takes the room of those before that were
// used up.
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
			t.Fatalf("%d objects that nobody holds, and extents of %d", objects, n)
		}
	}
}

// A mix says how large the next object is, and how many others come before it is
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

// TestReuseScattersLess: an object finds room in one piece at least as often as
// where room is used in turn.
func TestReuseScattersLess(t *testing.T) {
	for name, next := range mixes {
		t.Run(name, func(t *testing.T) {
			inTurn, reused := unplaced(t, next, false), unplaced(t, next, true)
			if reused > inTurn || inTurn == 0 {
				t.Errorf("%d objects found no room, and %d where room is used in turn", reused, inTurn)
			}
		})
	}
}

// unplaced counts the objects that find no room in one piece, in a store that is three
// quarters full at the most.
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
