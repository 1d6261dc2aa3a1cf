package shmstore

import "testing"

// TestOneReleaseForEachLease: of two leases on one object, each by debt or by
// pin, releasing a copy of the first again panics, and does not release the
// second, which keeps the object.
func TestOneReleaseForEachLease(t *testing.T) {
	for name, take := range map[string]func(*Store, Handle) (Lease, error){
		"debt": func(s *Store, h Handle) (Lease, error) { return s.Local().Take(h) },
		"pin":  func(s *Store, h Handle) (Lease, error) { return s.Local().Pin(h) },
	} {
		t.Run(name, func(t *testing.T) {
			s := create(t, small(Heap))
			r := mustReserve(t, s, 10, 0)
			fill(r.Bytes(), 1)
			h := mustCommit(t, r, 10, 2)
			from := func(h Handle) (Lease, error) { return take(s, h) }
			first, second := mustLease(t, from, h), mustLease(t, from, h)
			first.Release()
			wantPanic(t, "releasing the first lease again", first.Release)
			if name == "pin" { // the debts would keep the object as well
				for range 2 {
					if err := s.Local().Drop(h); err != nil {
						t.Fatal(err)
					}
				}
			}
			if freed := s.FreeUnused(); freed != 0 {
				t.Errorf("%d bytes were freed under the second lease", freed)
			}
			second.Release()
			if freed := s.FreeUnused(); freed != 10 {
				t.Errorf("%d bytes were freed, want 10", freed)
			}
		})
	}
}
