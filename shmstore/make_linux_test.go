package shmstore

import (
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
)

// ahead reserves a large object, and checks whether it needs memory.
func ahead(t *testing.T, s *Store, unmade bool) *Reservation {
	t.Helper()
	got, err := s.ReserveAhead(nil, 1, largeSize, codec.IDRaw, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].NeedsMemory() != unmade {
		t.Fatalf("a reservation without memory: %t, want %t", !unmade, unmade)
	}
	wantClean(t, s)
	return &got[0]
}

// TestMake: a large object is reserved before it has memory, and the holder of the
// reservation makes the memory; with a spare segment it has memory at once.
func TestMake(t *testing.T) {
	for _, memory := range memories() {
		s := create(t, reusing(memory))
		for i := range uint64(3) {
			r := ahead(t, s, i == 0)
			if i == 0 {
				wantLarge(t, s, 1, 3*pageBytes)
				if err := s.Make(r); err != nil {
					t.Fatal(err)
				}
			}
			want := content(largeSize, i)
			copy(r.Bytes(), want)
			h, err := r.Commit(largeSize, 1)
			if err != nil {
				t.Fatal(err)
			}
			wantClean(t, s)
			wantBytes(t, s.Local().Take, h, want)
		}
		small, err := s.ReserveAhead(nil, 2, 100, codec.IDRaw, 0)
		if err != nil || len(small) != 2 || small[0].NeedsMemory() {
			t.Errorf("small objects ahead: %d, %v", len(small), err)
		}
		for i := range small {
			small[i].Abort()
		}
	}
}

// TestReservationWithoutMemory: a reservation whose memory is never made, or cannot be made, takes nothing after it
// was aborted, and cannot be committed.
func TestReservationWithoutMemory(t *testing.T) {
	s := create(t, reusing(Shared))
	r := ahead(t, s, true)
	wantPanic(t, "Commit of a reservation without memory", func() { _, _ = r.Commit(largeSize, 0) })
	available := int64(0)
	scarce(t, func() int64 { return available })
	if err := s.Make(r); !errors.Is(err, ErrMemory) || !r.NeedsMemory() {
		t.Errorf("error %v, want %v; without memory: %t", err, ErrMemory, r.NeedsMemory())
	}
	available = 1 << 30
	if err := s.Make(r); err != nil { // the reservation is unchanged
		t.Error(err)
	}
	r.Abort()
	ahead(t, s, false).Abort()
	for range 3 {
		s.FreeUnused()
		ahead(t, s, true).Abort()
	}
	s.FreeUnused()
	wantLarge(t, s, 0, 0)
	wantClean(t, s)
}
