package shmstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
)

// TestPieceIsFreedWithItsObject frees objects in every possible way, and checks
// the device before and after.
func TestPieceIsFreedWithItsObject(t *testing.T) {
	for _, tc := range []struct {
		name string
		free func(t *testing.T, s *Store, h Handle)
	}{
		{"evicted for room in the arena", func(t *testing.T, s *Store, h Handle) { mustPut(t, s, make([]byte, s.inArena), 0) }},
		{"alone", func(t *testing.T, s *Store, h Handle) {
			if err := drop(s, h); err != nil {
				t.Error(err)
			}
		}},
		{"unused", func(t *testing.T, s *Store, h Handle) { s.FreeUnused() }},
		{"unused on the device", func(t *testing.T, s *Store, h Handle) {
			if left := s.FreeUnusedOn(s.devices[0].dev); left != 0 {
				t.Errorf("%d pieces are left", left)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := create(t, Options{Memory: Heap, ArenaBytes: minArenaBytes, LargeObjectBytes: minArenaBytes - 64})
			reader, device := mustDeclare(t, s, "reader"), newCountedDevice(10)
			h := mustPutOn(t, s, device, 10, Readers(reader.ID()))
			lease, err := reader.Take(h)
			if err != nil {
				t.Fatal(err)
			}
			s.FreeUnused()
			if st := s.Stats(); device.Pieces() != 1 || st.Pieces != 1 || st.PieceBytes != 10 {
				t.Fatalf("%d pieces are in use while the object is read, Stats say %d of %d bytes", device.Pieces(), st.Pieces, st.PieceBytes)
			}
			lease.Release()
			tc.free(t, s, h)
			if st := s.Stats(); device.Pieces() != 0 || st.Pieces != 0 || st.PieceBytes != 0 {
				t.Errorf("%d pieces are in use after the object has gone, Stats say %d of %d bytes", device.Pieces(), st.Pieces, st.PieceBytes)
			}
		})
	}
}

func TestPieceOfAnAbortedReservation(t *testing.T) {
	s, device := create(t, small(Heap)), newCountedDevice(10)
	r := mustReserveOn(t, s, device, 10, 0)
	if _, _, err := s.ReserveOn(device, 1, 1, codec.IDRaw, 0); !errors.Is(err, ErrFull) {
		t.Fatalf("the piece of an open reservation was allocated again: %v", err)
	}
	r.Abort()
	mustPutOn(t, s, device, 10, 0)
	if st := s.Stats(); st.AbortedTotal != 1 || st.EvictedTotal != 0 || st.DeviceEvictedTotal != 0 {
		t.Errorf("%d aborted and %d evicted, %d for the device; want one aborted", st.AbortedTotal, st.EvictedTotal, st.DeviceEvictedTotal)
	}
}

// TestDeviceSpaceComesFromTheOldest: ReserveOn evicts the oldest objects that hold a
// piece, as many as are needed, and no object without a piece.
func TestDeviceSpaceComesFromTheOldest(t *testing.T) {
	s, device, other := create(t, small(Heap)), newCountedDevice(10), newCountedDevice(10)
	plain := mustPut(t, s, content(100, 1), 0)
	elsewhere := mustPutOn(t, s, other, 10, 0)
	oldest := mustPutOn(t, s, device, 3, 0)
	held := mustPutOn(t, s, device, 2, Readers(LocalReader))
	next := mustPutOn(t, s, device, 3, 0)
	youngest := mustPutOn(t, s, device, 2, 0)
	mustPutOn(t, s, device, 5, 0)
	for _, o := range []struct {
		name  string
		h     Handle
		there bool
	}{
		{"without a piece", plain, true},
		{"with a piece of another device", elsewhere, true},
		{"oldest", oldest, false},
		{"that is owed", held, true},
		{"next", next, false},
		{"youngest", youngest, true},
	} {
		lease, err := s.Local().Pin(o.h)
		if (err == nil) != o.there {
			t.Errorf("the object %s is there: %t, want %t", o.name, err == nil, o.there)
		}
		if err == nil {
			lease.Release()
		}
	}
	if st := s.Stats(); st.DeviceEvictedTotal != 2 || st.EvictedTotal != 2 {
		t.Errorf("%d evicted, %d for the device; want 2", st.EvictedTotal, st.DeviceEvictedTotal)
	}
	if err := s.Local().Drop(held); err != nil {
		t.Error(err)
	}
}

// growingDevice can get more space.
type growingDevice struct {
	countedDevice
	spare int64
}

func (d *growingDevice) Grow(sizeBytes int64) bool {
	d.capacity, d.spare = d.capacity+d.spare, 0
	return d.used+sizeBytes <= d.capacity
}

// TestDeviceGrowsWhenNoEvictionHelps: settled objects are evicted before the device grows.
func TestDeviceGrowsWhenNoEvictionHelps(t *testing.T) {
	s, device := create(t, small(Heap)), &growingDevice{countedDevice: *newCountedDevice(10), spare: 10}
	mustPutOn(t, s, device, 10, 0)
	first := mustPutOn(t, s, device, 10, Readers(LocalReader))
	if device.capacity != 10 {
		t.Fatal("the device grew while an eviction would do")
	}
	second := mustPutOn(t, s, device, 10, Readers(LocalReader))
	if device.capacity != 20 {
		t.Fatalf("a capacity of %d holds two pieces of 10", device.capacity)
	}
	if _, _, err := s.ReserveOn(device, 1, 1, codec.IDRaw, 0); !errors.Is(err, ErrFull) {
		t.Errorf("ReserveOn a full device that cannot grow: %v", err)
	}
	for _, h := range []Handle{first, second} {
		if err := s.Local().Drop(h); err != nil {
			t.Error(err)
		}
	}
}

func TestFullDeviceSaysWhoHolds(t *testing.T) {
	s, device := create(t, small(Heap)), newCountedDevice(10)
	little, reader, bystander := mustDeclare(t, s, "little"), mustDeclare(t, s, "slow"), mustDeclare(t, s, "bystander")
	mustPutOn(t, s, device, 0, Readers(little.ID()))
	mustPutOn(t, s, device, 7, Readers(reader.ID()))
	mustPut(t, s, content(100, 1), Readers(bystander.ID()))
	open := mustReserveOn(t, s, device, 2, 0)

	_, _, err := s.ReserveOn(device, 4, 20, codec.IDRaw, 0)
	var full *FullError
	if !errors.Is(err, ErrFull) || !errors.As(err, &full) {
		t.Fatalf("ReserveOn a full device: %v", err)
	}
	if full.Resource != ResourceDevice || full.NeededDeviceBytes != 4 || full.NeededBytes != 20 || full.Pieces != 3 || full.PieceBytes != 9 || full.Reserved != 1 {
		t.Errorf("the error is %+v", full)
	}
	if len(full.Holders) != 2 || full.Holders[0].Name != "slow" || full.Holders[0].Pieces != 1 || full.Holders[0].PieceBytes != 7 {
		t.Errorf("the holders are %v", full.Holders)
	}
	for _, part := range []string{"no room on the device for 4 bytes", "9 bytes in 3 pieces", "1 uncommitted", "slow", "7 bytes in 1 pieces of devices"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %q", part, err)
		}
	}
	if s.Stats().FullTotal != 1 {
		t.Error("it was not counted")
	}
	open.Abort()
	s.FreeUnused()
}

func TestReserveOnErrors(t *testing.T) {
	s, device := create(t, small(Heap)), newCountedDevice(10)
	for _, tc := range []struct {
		name        string
		deviceBytes int64
		size        int
		charge      ReaderSet
		want        error
	}{
		{"negative size", 1, -1, 0, ErrSize},
		{"negative piece", -1, 1, 0, ErrSize},
		{"too large", 1, int(s.MaxObjectBytes()) + 1, 0, ErrTooLarge},
		{"too large a piece", 11, 1, 0, ErrTooLarge},
		{"absent reader", 1, 1, Readers(9), ErrUnknownReader},
	} {
		if _, _, err := s.ReserveOn(device, tc.deviceBytes, tc.size, codec.IDRaw, tc.charge); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	var held []Reservation
	for { // until the arena has no space
		r, err := s.Reserve(int(s.inArena), codec.IDRaw, 0)
		if err != nil {
			break
		}
		held = append(held, r)
	}
	var full *FullError
	if _, _, err := s.ReserveOn(device, 1, int(s.inArena), codec.IDRaw, 0); !errors.As(err, &full) || full.Resource != ResourceRoom {
		t.Errorf("with a full arena: %v", err)
	}
	for i := range held {
		held[i].Abort()
	}
	if device.Pieces() != 0 {
		t.Errorf("%d pieces are in use after nothing but errors", device.Pieces())
	}
}

// TestLargeObjectOnDevice: an object with a segment of its own may hold a piece
// as well.
func TestLargeObjectOnDevice(t *testing.T) {
	s, device := create(t, Options{Memory: Heap, ArenaBytes: minArenaBytes, LargeObjectBytes: 1000, MaxLargeBytes: 2 * pageBytes}), newCountedDevice(10)
	for range 3 {
		r, _, err := s.ReserveOn(device, 6, 2000, codec.IDRaw, 0)
		if err != nil {
			t.Fatal(err)
		}
		if h, err := r.Commit(2000, 0); err != nil || !IsLarge(h) {
			t.Fatalf("Commit: %v, %v", h, err)
		}
		if st := s.Stats(); device.Pieces() != 1 || st.LargeObjects != 1 {
			t.Errorf("%d pieces in use, %d large objects, want one", device.Pieces(), st.LargeObjects)
		}
	}
}

func TestCloseFreesPieces(t *testing.T) {
	s, err := Create(small(Heap))
	if err != nil {
		t.Fatal(err)
	}
	device := newCountedDevice(10)
	mustPutOn(t, s, device, 1, Readers(LocalReader))
	open := mustReserveOn(t, s, device, 1, 0)
	if err := s.Close(); !errors.Is(err, ErrBusy) || device.Pieces() != 2 {
		t.Fatalf("Close with an open reservation: %v, %d pieces in use", err, device.Pieces())
	}
	open.Abort()
	for range 2 {
		if err := s.Close(); err != nil || device.Pieces() != 0 {
			t.Fatalf("Close: %v, %d pieces in use", err, device.Pieces())
		}
	}
	if _, _, err := s.ReserveOn(device, 1, 1, codec.IDRaw, 0); !errors.Is(err, ErrClosed) || s.FreeUnusedOn(device) != 0 {
		t.Errorf("ReserveOn a closed store: %v", err)
	}
}

// TestUnusedDeviceIsForgotten: a program that makes devices again and again leaves none in the store.
func TestUnusedDeviceIsForgotten(t *testing.T) {
	s := create(t, small(Heap))
	for range 10 {
		device := newCountedDevice(10)
		h := mustPutOn(t, s, device, 1, Readers(LocalReader))
		if left := s.FreeUnusedOn(device); left != 1 || len(s.devices) != 1 {
			t.Fatalf("%d pieces are left while one is owed, of %d devices", left, len(s.devices))
		}
		if err := s.Local().Drop(h); err != nil {
			t.Fatal(err)
		}
		if left := s.FreeUnusedOn(device); left != 0 || len(s.devices) != 0 {
			t.Fatalf("%d pieces are left, of %d devices", left, len(s.devices))
		}
	}
}
