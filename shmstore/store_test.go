package shmstore

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
)

func mustPut(t testing.TB, s *Store, data []byte, charge ReaderSet) Handle {
	t.Helper()
	h, err := s.Put(data, charge)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func mustReserve(t testing.TB, s *Store, size int, charge ReaderSet) Reservation {
	t.Helper()
	r, err := s.Reserve(size, codec.IDRaw, charge)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustCommit(t testing.TB, r Reservation, size, local int) Handle {
	t.Helper()
	h, err := r.Commit(size, local)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func mustLease(t testing.TB, take func(Handle) (Lease, error), h Handle) Lease {
	t.Helper()
	l, err := take(h)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustDeclare(t testing.TB, s *Store, name string) *Reader {
	t.Helper()
	r, err := s.DeclareReader(name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantError(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: error %v, want one that is %q", what, got, want)
	}
}

func wantPanic(t testing.TB, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s did not panic", what)
		}
	}()
	f()
}

// small is a store in which a handful of objects of half a kilobyte fit.
func small(memory Memory) Options {
	return Options{Memory: memory, ArenaBytes: minArenaBytes, Slots: 8, MaxObjectBytes: 1 << 10}
}

func TestPutAndRead(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s := create(t, Options{Memory: memory, ArenaBytes: 1 << 20})
		want := content(1000, 1)
		for name, put := range map[string]func() (Handle, error){
			"Put": func() (Handle, error) { return s.Put(want, Readers(0)) },
			"Reserve": func() (Handle, error) {
				r := mustReserve(t, s, 2000, 0)
				copy(r.Bytes(), want)
				return r.Commit(len(want), 1)
			},
		} {
			h, err := put()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			l := mustLease(t, s.Local().Take, h)
			if !bytes.Equal(l.Bytes(), want) {
				t.Errorf("%s: the bytes are not those that were put", name)
			}
			if l.Handle() != h || h.Size != uint64(len(want)) || h.Store != s.geo.store {
				t.Errorf("%s: handle %v, its lease has %v", name, h, l.Handle())
			}
			l.Release()
			if l.Bytes() != nil || !l.Handle().IsZero() {
				t.Errorf("%s: a released lease still has bytes or a handle", name)
			}
		}
	})
}

func TestReservationIsUsedOnce(t *testing.T) {
	s := create(t, small(Heap))
	committed := mustReserve(t, s, 10, 0)
	h := mustCommit(t, committed, 10, 0)
	aborted := mustReserve(t, s, 10, 0)
	aborted.Abort()
	var zero Reservation
	for name, r := range map[string]*Reservation{"committed": &committed, "aborted": &aborted, "zero": &zero} {
		wantPanic(t, "Commit of a "+name+" reservation", func() { _, _ = r.Commit(1, 0) })
		wantPanic(t, "Abort of a "+name+" reservation", func() { r.Abort() })
	}
	// The committed object is unchanged.
	if l := mustLease(t, s.Local().Pin, h); len(l.Bytes()) != 10 {
		t.Errorf("the object has %d bytes, 10 were committed", len(l.Bytes()))
	} else {
		l.Release()
	}
	// Also once the slot has another object, or none.
	s.FreeUnused()
	wantPanic(t, "Commit after the object is gone", func() { _, _ = committed.Commit(1, 0) })
	again := mustReserve(t, s, 10, 0)
	wantPanic(t, "Commit after the slot was granted again", func() { _, _ = committed.Commit(1, 0) })
	again.Abort()
}

// TestHeldObjectsBlockNoOthers: a held object does not block others, and the oldest settled one
// is evicted first.
func TestHeldObjectsBlockNoOthers(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s := create(t, small(memory))
		l := mustLease(t, s.Local().Take, mustPut(t, s, content(512, 1), Readers(0)))
		var oldest, last Handle
		for i := range 100 {
			last = mustPut(t, s, content(512, uint64(i)), 0)
			if i == 0 {
				oldest = last
			}
			wantClean(t, s)
		}
		if !bytes.Equal(l.Bytes(), content(512, 1)) {
			t.Error("the held object changed")
		}
		if err := s.verify(last); err != nil {
			t.Errorf("the youngest: %v", err)
		}
		wantError(t, "the oldest that was not held", s.verify(oldest), ErrStale)
		l.Release()
	})
}

func TestFullErrorNamesHolders(t *testing.T) {
	s := create(t, small(Heap))
	reader := mustDeclare(t, s, "slow")
	_ = mustPut(t, s, content(512, 1), Readers(reader.ID()))
	l := mustLease(t, s.Local().Pin, mustPut(t, s, content(100, 1), 0))
	r := mustReserve(t, s, 200, 0)

	var err error
	for err == nil {
		_, err = s.Put(content(1000, 2), Readers(reader.ID()))
	}
	var full *FullError
	if !errors.As(err, &full) {
		t.Fatalf("error %v, want a *FullError", err)
	}
	if full.Resource != ResourceRoom || full.NeededBytes != 1000 || full.Reserved != 1 || full.ReservedBytes != 200 {
		t.Errorf("the resource is wrong: %+v", full)
	}
	want := []Holder{
		{Reader: 1, Name: "slow", Objects: 4, Bytes: 3512, Debts: 4, Oldest: 1},
		{Reader: 0, Name: "local", Objects: 1, Bytes: 100, Pins: 1, Oldest: 2},
	}
	if diff := cmp.Diff(want, full.Holders); diff != "" {
		t.Errorf("holders (-want +got):\n%s", diff)
	}
	l.Release()
	r.Abort()

	for err = nil; err == nil; {
		_, err = s.Put(nil, Readers(reader.ID()))
	}
	if !errors.As(err, &full) || full.Resource != ResourceSlots || full.FreeSlots != 0 {
		t.Errorf("error %v, want one about slots", err)
	}
	if err := s.RemoveReader(reader.ID()); err != nil {
		t.Fatal(err)
	}
	if left := freeAll(s); left != 0 {
		t.Errorf("%d objects are left after their only reader was removed", left)
	}
}

func TestPinsSettleNothing(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s := create(t, small(memory))
		reader := mustDeclare(t, s, "reader")
		h := mustPut(t, s, content(100, 1), Readers(reader.ID(), 0))
		l := mustLease(t, reader.Take, h)
		l.Release()
		for range 5 {
			l := mustLease(t, reader.Pin, h)
			l.Release()
		}
		// The local reader has not read yet: the six above must not count
		// for it.
		s.FreeUnused()
		l = mustLease(t, s.Local().Take, h)
		if !bytes.Equal(l.Bytes(), content(100, 1)) {
			t.Error("two reads by one reader freed the data of another")
		}
		wantClean(t, s)
		l.Release()
		if s.FreeUnused() == 0 {
			t.Error("the object stays although all have read it")
		}
		_, err := reader.Pin(h)
		wantError(t, "Pin of an evicted object", err, ErrStale)
	})
}

func TestDebtsAreCounted(t *testing.T) {
	s := create(t, small(Heap))
	r := mustReserve(t, s, 10, Readers(0))
	h := mustCommit(t, r, 10, 3) // four debts of the local reader in all
	for i := range 3 {
		l := mustLease(t, s.Local().Take, h)
		l.Release()
		s.FreeUnused()
		if s.Stats().Objects != 1 {
			t.Fatalf("the object is gone after %d of 4 deliveries", i+1)
		}
	}
	if err := s.Local().Drop(h); err != nil {
		t.Fatal(err)
	}
	_, err := s.Local().Take(h)
	wantError(t, "a fifth delivery", err, ErrNoDebt)
	wantError(t, "dropping a fifth delivery", s.Local().Drop(h), ErrNoDebt)
	s.FreeUnused()
	if s.Stats().Objects != 0 {
		t.Error("the object stays although every delivery was settled")
	}
}

func TestShare(t *testing.T) {
	s := create(t, small(Heap))
	for name, take := range map[string]func(Handle) (Lease, error){"debt": s.Local().Take, "pin": s.Local().Pin} {
		h := mustPut(t, s, content(10, 1), Readers(0))
		l := mustLease(t, take, h)
		if err := l.Share(2); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		l.Release()
		wantError(t, name, l.Share(1), ErrClosed)
		for range 2 {
			s.FreeUnused()
			l := mustLease(t, s.Local().Take, h)
			l.Release()
		}
		if name == "pin" {
			if err := s.Local().Drop(h); err != nil { // the debt of the put
				t.Fatal(err)
			}
		}
		s.FreeUnused()
		if s.Stats().Objects != 0 {
			t.Errorf("%s: the object stays", name)
		}
	}
}

// TestShareRefuses: a reader cannot share objects that another reader holds, nor a negative number of times.
func TestShareRefuses(t *testing.T) {
	s := create(t, small(Heap))
	reader := mustDeclare(t, s, "reader")
	h := mustPut(t, s, content(10, 1), Readers(0, reader.ID()))
	others, own := mustLease(t, reader.Take, h), mustLease(t, s.Local().Take, h)
	wantError(t, "another reader's lease", others.Share(1), ErrUnsupported)
	for _, n := range []int{-1, maxDebts + 1, -1 << 32} {
		wantError(t, "deliveries that cannot be", own.Share(n), ErrSize)
	}
	others.Release()
	own.Release()
	if s.FreeUnused(); s.Stats().Objects != 0 {
		t.Error("the object stays: a share that was refused was charged")
	}
}

// TestShareIsBounded: the debts of a reader never grow so far that their number looks
// negative.
func TestShareIsBounded(t *testing.T) {
	s := create(t, small(Heap))
	h := mustPut(t, s, content(10, 1), Readers(0))
	l := mustLease(t, s.Local().Take, h)
	if err := l.Share(maxDebts - 1); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, maxDebts} {
		wantError(t, "one too many", l.Share(n), ErrFull)
	}
	if err := l.Share(0); err != nil {
		t.Error(err)
	}
	l.Release()
	if s.FreeUnused(); s.Stats().Objects != 1 {
		t.Error("the object is gone, although debts are open")
	}
	if got := s.Stats().Quarantined; got != 0 {
		t.Errorf("quarantined: %v", got)
	}
	again := mustLease(t, s.Local().Take, h)
	again.Release()
}

func TestPinsKeep(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s := create(t, small(memory))
		reader := mustDeclare(t, s, "reader")
		h := mustPut(t, s, content(100, 1), 0)
		l := mustLease(t, reader.Pin, h)
		if freed := s.FreeUnused(); freed != 0 {
			t.Errorf("%d bytes were freed under a pin", freed)
		}
		if s.Stats().PinConflictsTotal != 1 {
			t.Error("the pin was not counted as what kept the object")
		}
		l.Release()
		if freed := s.FreeUnused(); freed != 100 {
			t.Errorf("%d bytes were freed, want 100", freed)
		}
		_, err := reader.Pin(h)
		wantError(t, "Pin", err, ErrStale)
	})
}

func TestExtent(t *testing.T) {
	s := create(t, small(Heap))
	reader := mustDeclare(t, s, "reader")
	extent, err := s.ReserveExtent(nil, 100, 100, codec.IDRaw, Readers(reader.ID()))
	if err != nil || len(extent) != 8 {
		t.Fatalf("an extent of %d objects, %v; want the 8 slots", len(extent), err)
	}
	_, err = s.ReserveExtent(nil, 1, 100, codec.IDRaw, 0)
	wantError(t, "when nothing fits", err, ErrFull)
	_, err = s.ReserveExtent(nil, 0, 100, codec.IDRaw, 0)
	wantError(t, "no objects", err, ErrSize)

	var handles []Handle
	for i := range extent[:3] {
		copy(extent[i].Bytes(), content(50, uint64(i)))
		extent[i].SetCodec(codec.IDMsgpack)
		handles = append(handles, mustCommit(t, extent[i], 50, 0))
	}
	for i := range extent[3:] {
		extent[3+i].Abort()
	}
	s.FreeUnused()
	if got := s.Stats(); got.Objects != 3 || got.AbortedTotal != 5 {
		t.Errorf("%d objects and %d aborted, want 3 and 5", got.Objects, got.AbortedTotal)
	}
	for i, h := range handles {
		l := mustLease(t, reader.Take, h)
		if !bytes.Equal(l.Bytes(), content(50, uint64(i))) || codec.ID(h.Codec) != codec.IDMsgpack {
			t.Errorf("object %d has other bytes, or codec %d", i, h.Codec)
		}
		l.Release()
	}
}

func TestDoorbell(t *testing.T) {
	s := create(t, small(Heap))
	rang := 0
	s.OnRoom(func() { rang++ })
	reader := mustDeclare(t, s, "reader")
	steps := []struct {
		name string
		step func() func() // returns the function that may free space
	}{
		{"release of a debt", func() func() {
			l := mustLease(t, reader.Take, mustPut(t, s, nil, Readers(reader.ID())))
			return l.Release
		}},
		{"release of a pin", func() func() {
			l := mustLease(t, reader.Pin, mustPut(t, s, nil, 0))
			return l.Release
		}},
		{"drop", func() func() {
			h := mustPut(t, s, nil, Readers(reader.ID()))
			return func() { _ = reader.Drop(h) }
		}},
		{"abort", func() func() {
			r := mustReserve(t, s, 1, 0)
			return r.Abort
		}},
		{"a pin that found its object gone", func() func() {
			h := mustPut(t, s, nil, 0)
			s.FreeUnused()
			return func() { _, _ = reader.Pin(h) }
		}},
	}
	for _, tc := range steps {
		makeRoom := tc.step()
		rang = 0
		s.WantRoom(true)
		s.WantRoom(true) // raising it twice is raising it once
		if makeRoom(); rang != 1 {
			t.Errorf("%s: the function of OnRoom was called %d times while space was wanted, want 1", tc.name, rang)
		}
		makeRoom = tc.step()
		s.WantRoom(false)
		if makeRoom(); rang != 1 {
			t.Errorf("%s: the function of OnRoom was called while no space was wanted", tc.name)
		}
	}
}

func TestReaders(t *testing.T) {
	s := create(t, Options{Memory: Heap, ArenaBytes: minArenaBytes, MaxReaders: 3})
	var ids []ReaderID
	for range 3 {
		ids = append(ids, mustDeclare(t, s, "r").ID())
	}
	if diff := cmp.Diff([]ReaderID{1, 2, 3}, ids); diff != "" {
		t.Errorf("indexes (-want +got):\n%s", diff)
	}
	_, err := s.DeclareReader("one too many")
	wantError(t, "a fourth", err, ErrTooManyReaders)
	wantError(t, "removing the local reader", s.RemoveReader(0), ErrUnknownReader)
	wantError(t, "removing an absent reader", s.RemoveReader(9), ErrUnknownReader)
	wantError(t, "removing no index", s.RemoveReader(200), ErrUnknownReader)
	_, err = s.Put(nil, Readers(1, 40))
	if !errors.Is(err, ErrUnknownReader) || !strings.Contains(err.Error(), "{40}") {
		t.Errorf("charging an absent reader: %v, want an error that names 40", err)
	}
}

// TestRemoveReader: exactly the objects of a dead reader are freed, and the
// next reader with the same index owes nothing.
func TestRemoveReader(t *testing.T) {
	s := create(t, small(Heap))
	doomed, other := mustDeclare(t, s, "doomed"), mustDeclare(t, s, "other")
	both := mustPut(t, s, content(10, 1), Readers(doomed.ID(), other.ID()))
	mustPut(t, s, content(10, 2), Readers(doomed.ID()))
	pinned := mustPut(t, s, content(10, 3), 0)
	mustLease(t, doomed.Pin, pinned)
	mustLease(t, doomed.Take, both)
	uncommitted := mustReserve(t, s, 10, Readers(doomed.ID()))

	if err := s.RemoveReader(doomed.ID()); err != nil {
		t.Fatal(err)
	}
	_, err := doomed.Pin(both)
	wantError(t, "Pin by a removed reader", err, ErrClosed)
	if freed := s.FreeUnused(); freed != 20 {
		t.Errorf("%d bytes were freed, want the 20 of the objects that it alone held", freed)
	}
	heir := mustDeclare(t, s, "heir")
	if heir.ID() != doomed.ID() {
		t.Fatalf("the next reader has index %d", heir.ID())
	}
	uncommitted.Abort() // its debts were those of the dead reader, not of the next
	s.FreeUnused()
	wantClean(t, s)
	_, err = heir.Take(both)
	wantError(t, "the heir takes what its predecessor owed", err, ErrNoDebt)
	l := mustLease(t, other.Take, both)
	l.Release()
}

func TestDoubleRelease(t *testing.T) {
	s := create(t, small(Heap))
	for name, take := range map[string]func(Handle) (Lease, error){"debt": s.Local().Take, "pin": s.Local().Pin} {
		h := mustPut(t, s, nil, Readers(0))
		l := mustLease(t, take, h)
		twin := l
		l.Release()
		wantPanic(t, name+": releasing a variable twice", l.Release)
		wantPanic(t, name+": releasing a copy", twin.Release)
	}
	if invariantsOn {
		h := mustCommit(t, mustReserve(t, s, 1, 0), 1, 2)
		other := mustLease(t, s.Local().Take, h)
		l := mustLease(t, s.Local().Take, h)
		twin := l
		l.Release()
		wantPanic(t, "releasing a copy while another lease is open", twin.Release)
		other.Release()
	}
	var zero Lease
	wantPanic(t, "releasing the zero lease", zero.Release)
}

func TestClose(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s, err := Create(small(memory))
		if err != nil {
			t.Fatal(err)
		}
		reader := mustDeclare(t, s, "reader")
		h := mustPut(t, s, content(100, 1), Readers(reader.ID()))
		l := mustLease(t, reader.Take, h)
		r := mustReserve(t, s, 10, 0)

		wantError(t, "Close with a lease", s.Close(), ErrBusy)
		if !bytes.Equal(l.Bytes(), content(100, 1)) {
			t.Error("closing the store took the bytes from under a lease")
		}
		l.Release()
		wantError(t, "Close with a reservation", s.Close(), ErrBusy)
		r.Abort()
		for range 2 {
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}

		_, err = s.Put(nil, 0)
		wantError(t, "Put", err, ErrClosed)
		_, err = reader.Pin(h)
		wantError(t, "Pin", err, ErrClosed)
		_, err = s.DeclareReader("late")
		wantError(t, "DeclareReader", err, ErrClosed)
		_, _, err = s.LargeSegment(h)
		wantError(t, "LargeSegment", err, ErrClosed)
		if freed := s.FreeUnused(); freed != 0 {
			t.Errorf("a closed store frees %d bytes", freed)
		}
		s.Check()
		s.Stats()
		s.WantRoom(true)
		// A method after whose check the store was closed.
		if word := s.lines[h.Slot].word.load(); memory == Shared && word != 0 {
			t.Errorf("the word reads %x in an unmapped directory", word)
		}
	})
}

// TestCloseWhileCollecting: a reader that gets ErrClosed after it has
// collected a debt holds nothing.
func TestCloseWhileCollecting(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s, err := Create(small(memory))
		if err != nil {
			t.Fatal(err)
		}
		reader := mustDeclare(t, s, "reader")
		h := mustPut(t, s, content(100, 1), Readers(reader.ID()))
		ln, err := reader.locate(&h)
		if err != nil {
			t.Fatal(err)
		}
		if err := reader.Close(); err != nil { // after collect has read the flag once
			t.Fatal(err)
		}
		wantError(t, "collect", reader.collect(ln, &h), ErrClosed)
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

func TestOptions(t *testing.T) {
	for name, opts := range map[string]Options{
		"arena too small":    {ArenaBytes: 100},
		"arena negative":     {ArenaBytes: -1},
		"object above arena": {ArenaBytes: 1 << 20, MaxObjectBytes: 2 << 20},
		"negative slots":     {Slots: -1},
		"too many readers":   {MaxReaders: 64},
		"unknown memory":     {Memory: 7},
	} {
		_, err := Create(opts)
		wantError(t, name, err, ErrOptions)
	}
	if err := (Options{}).Validate(); err != nil {
		t.Errorf("the zero options: %v", err)
	}
}

// TestEmptyStoreIsCheap: bounds what an idle store of the default size takes on the
// Go heap.
func TestEmptyStoreIsCheap(t *testing.T) {
	if len(memories()) == 1 {
		t.Skip("this platform keeps stores on the heap")
	}
	const limit = 1_500_000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s := create(t, Options{})
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > limit {
		t.Errorf("an empty store of %d slots allocates %d bytes on the heap, want %d at most", s.Stats().Slots, got, limit)
	}
}
