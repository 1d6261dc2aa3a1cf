package shmstore

import (
	"runtime"
	"testing"
)

// The tests here run the two halves of the pin protocol against each other
// step by step, in orders that a stress test rarely hits.

// TestPinWaitsForTheWriter: a reader that finds a closing slot keeps its pin raised
// while it waits, and follows the writer's decision.
func TestPinWaitsForTheWriter(t *testing.T) {
	for _, tc := range []struct {
		name    string
		decides state
		want    error
	}{
		{name: "the object stays", decides: stateLive},
		{name: "the object goes", decides: stateFree, want: ErrStale},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := create(t, small(Heap))
			h := mustPut(t, s, content(10, 1), 0)
			word := &s.lines[h.Slot].word
			word.store(wordOf(h.Gen, stateClosing))
			pinned := make(chan error, 1)
			go func() {
				l, err := s.Local().Pin(h)
				if err == nil {
					l.Release()
				}
				pinned <- err
			}()
			pin := &s.Local().ledger[h.Slot].pin
			for pin.Load() == 0 {
				select {
				case err := <-pinned:
					t.Fatalf("the reader did not wait with its pin raised: %v", err)
				default:
					runtime.Gosched()
				}
			}
			word.store(wordOf(h.Gen, tc.decides))
			if err := <-pinned; tc.want == nil && err != nil || tc.want != nil {
				wantError(t, "Pin", err, tc.want)
			}
			if pin.Load() != 0 {
				t.Error("the pin is still raised")
			}
			word.store(wordOf(h.Gen, stateLive)) // so that the accounts agree again
		})
	}
}

// TestEvictionSeesLatePins: a pin raised after the slot was found settled, but
// before its pins are read, keeps the object.
func TestEvictionSeesLatePins(t *testing.T) {
	s := create(t, small(Heap))
	reader := mustDeclare(t, s, "reader")
	h := mustPut(t, s, content(10, 1), 0)
	pin := &reader.ledger[h.Slot].pin
	s.whileClosing = func() {
		if state := stateOf(s.lines[h.Slot].word.load()); state != stateClosing {
			t.Errorf("pins are read while the slot is %v", state)
		}
		pin.Store(1)
	}
	if freed := s.FreeUnused(); freed != 0 {
		t.Errorf("%d bytes were freed under a pin", freed)
	}
	s.whileClosing = nil
	pin.Store(0)
	if freed := s.FreeUnused(); freed != 10 {
		t.Errorf("%d bytes were freed, want 10", freed)
	}
}

// TestEvictionSeesLateShares: a pin that is shared and released during the
// eviction leaves debts, and the delivery can be taken at once,
// although the slot is closing.
func TestEvictionSeesLateShares(t *testing.T) {
	s := create(t, small(Heap))
	h := mustPut(t, s, content(10, 1), 0)
	l := mustLease(t, s.Local().Pin, h)
	var delivered Lease
	s.whileClosing = func() {
		if err := l.Share(2); err != nil {
			t.Error(err)
		}
		l.Release()
		delivered = mustLease(t, s.Local().Take, h)
	}
	if freed := s.FreeUnused(); freed != 0 {
		t.Errorf("%d bytes were freed under two deliveries", freed)
	}
	s.whileClosing = nil
	delivered.Release()
	s.FreeUnused()
	if err := s.Local().Drop(h); err != nil {
		t.Errorf("the second delivery: %v", err)
	}
	if freed := s.FreeUnused(); freed != 10 {
		t.Errorf("%d bytes were freed, want 10", freed)
	}
}
