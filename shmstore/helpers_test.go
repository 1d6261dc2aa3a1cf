package shmstore

import (
	"runtime"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
)

// memories are the kinds of memory this platform has.
func memories() []Memory {
	if runtime.GOOS == "linux" {
		return []Memory{Heap, Shared}
	}
	return []Memory{Heap}
}

// eachMemory runs a test over every kind of memory.
func eachMemory(t *testing.T, test func(t *testing.T, memory Memory)) {
	for _, memory := range memories() {
		t.Run(memory.String(), func(t *testing.T) { test(t, memory) })
	}
}

// create makes a store that is checked and closed at the end of the test.
func create(t testing.TB, opts Options) *Store {
	t.Helper()
	s, err := Create(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			return // an open lease would be a second, confusing failure
		}
		wantClean(t, s)
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// freeAll frees all objects that no reader holds, and returns how many stay.
func freeAll(s *Store) (left int) {
	s.FreeUnused()
	return s.Stats().Objects
}

// drop evicts one object, unless a reader holds it.
func drop(s *Store, h Handle) error {
	err := s.verify(h)
	if err == nil {
		s.evictSlot(h.Slot)
	}
	return err
}

// wantClean fails the test if an invariant is broken.
func wantClean(t testing.TB, s *Store) {
	t.Helper()
	for _, v := range s.Check() {
		t.Errorf("Check: %v", v)
	}
}

// countedDevice is a device that counts bytes, and checks that only pieces in
// use are freed.
type countedDevice struct {
	capacity int64
	used     int64
	next     uint32
	pieces   map[uint32]int64 // in use
}

func newCountedDevice(capacity int64) *countedDevice {
	return &countedDevice{capacity: capacity, pieces: make(map[uint32]int64)}
}

func (d *countedDevice) Allocate(sizeBytes int64) (piece uint32, ok bool) {
	if d.used+sizeBytes > d.capacity {
		return 0, false
	}
	d.next++
	d.used += sizeBytes
	d.pieces[d.next] = sizeBytes
	return d.next, true
}

func (d *countedDevice) Free(piece uint32) {
	sizeBytes, inUse := d.pieces[piece]
	if !inUse {
		panic("a piece is freed that is not in use")
	}
	delete(d.pieces, piece)
	d.used -= sizeBytes
}

func (d *countedDevice) Pieces() int { return len(d.pieces) }

func (d *countedDevice) MaxBytes() int64 { return d.capacity }

// mustReserveOn reserves a few bytes, and a piece of a device.
func mustReserveOn(t testing.TB, s *Store, dev Device, deviceBytes int64, charge ReaderSet) Reservation {
	t.Helper()
	r, _, err := s.ReserveOn(dev, deviceBytes, 10, codec.IDRaw, charge)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// mustPutOn is mustReserveOn, committed.
func mustPutOn(t testing.TB, s *Store, dev Device, deviceBytes int64, charge ReaderSet) Handle {
	t.Helper()
	r := mustReserveOn(t, s, dev, deviceBytes, charge)
	h, err := r.Commit(10, 0)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// fill writes bytes determined by a seed.
func fill(b []byte, seed uint64) {
	for i := range b {
		seed = seed*6364136223846793005 + 1442695040888963407
		b[i] = byte(seed >> 56)
	}
}

// content returns size bytes determined by a seed.
func content(size int, seed uint64) []byte {
	b := make([]byte, size)
	fill(b, seed)
	return b
}
