package shmstore

import (
	"bytes"
	"errors"
	"testing"
)

// forgetful is a device that is told of large objects, and may forget them later.
type forgetful struct {
	known [][]byte
	late  bool    // unmap is called by forget, or stays by refuse
	gone  []going // those that wait for that
}

type going struct{ unmap, stays func() }

func (f *forgetful) made(mem []byte) func(unmap, stays func()) {
	f.known = append(f.known, mem)
	return func(unmap, stays func()) {
		if f.late {
			f.gone = append(f.gone, going{unmap, stays})
			return
		}
		unmap()
	}
}

// forget lets the oldest be unmapped.
func (f *forgetful) forget() {
	oldest := f.gone[0]
	f.gone = f.gone[1:]
	oldest.unmap()
}

// refuse says that the oldest will never be unmapped.
func (f *forgetful) refuse() {
	oldest := f.gone[0]
	f.gone = f.gone[1:]
	oldest.stays()
}

// TestLargeObjectsAreForgotten: a device that was told of a large object is asked to forget
// it, once, in every way in which the object can end, and before its memory is unmapped.
func TestLargeObjectsAreForgotten(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		for name, end := range map[string]func(s *Store, h Handle){
			"evicted": func(s *Store, _ Handle) { s.FreeUnused() },
			"closed":  func(s *Store, _ Handle) { _ = s.Close() },
		} {
			s, f := create(t, withLarge(memory)), &forgetful{late: true}
			s.OnLarge(f.made)
			want := content(largeSize, 1)
			h := mustPut(t, s, want, 0)
			if len(f.known) != 1 || len(f.gone) != 0 {
				t.Fatalf("%s: told of %d, and %d are to be forgotten, of one that is there", name, len(f.known), len(f.gone))
			}
			end(s, h)
			if len(f.gone) != 1 {
				t.Fatalf("%s: %d are to be forgotten, of one that is gone", name, len(f.gone))
			}
			if mem := f.known[0]; !invariantsOn && !bytes.Equal(mem[:len(want)], want) {
				t.Errorf("%s: the memory was unmapped before it was forgotten", name)
			}
			f.forget()
			if mem := f.known[0]; memory == Shared && !invariantsOn && !bytes.Equal(mem, make([]byte, len(mem))) {
				t.Errorf("%s: the memory stays", name)
			}
		}
		s, f := create(t, withLarge(memory)), &forgetful{}
		s.OnLarge(f.made)
		r := mustReserve(t, s, largeSize, 0)
		r.Abort()
		s.FreeUnused()
		if len(f.known) != 1 {
			t.Errorf("told of %d", len(f.known))
		}
		wantLarge(t, s, 0, 0)
	})
}

// TestLeavingObjectsTakeSpace: memory that is not forgotten yet takes space, no object is
// evicted in vain for it, and a writer that waits for the space is woken.
func TestLeavingObjectsTakeSpace(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s, f := create(t, withLarge(memory)), &forgetful{late: true} // three fit
		s.OnLarge(f.made)
		rung := 0
		s.OnRoom(func() { rung++ })
		var held []Handle
		for range 2 {
			held = append(held, mustPut(t, s, content(largeSize, 1), Readers(0)))
		}
		if err := drop(s, mustPut(t, s, content(largeSize, 1), 0)); err != nil {
			t.Fatal(err)
		}
		wantLarge(t, s, 2, 9*pageBytes)

		s.WantRoom(true)
		_, err := s.Put(content(largeSize, 3), 0)
		var full *FullError
		if !errors.As(err, &full) || full.Resource != ResourceLarge || full.LargeBytes != 9*pageBytes {
			t.Fatalf("before it is forgotten: %v, %+v", err, full)
		}
		if rung != 0 {
			t.Errorf("there is no space, and the function of OnRoom was called %d times", rung)
		}
		f.forget()
		if rung == 0 {
			t.Error("the function of OnRoom was not called for the space")
		}
		s.WantRoom(false)
		f.late = false
		h := mustPut(t, s, content(largeSize, 3), 0)
		wantLarge(t, s, 3, 9*pageBytes)

		// While memory is being forgotten, settled objects stay.
		f.late = true
		if err := drop(s, h); err != nil {
			t.Fatal(err)
		}
		settled := held[0]
		if err := s.Local().Drop(settled); err != nil {
			t.Fatal(err)
		}
		_, err = s.Put(content(pageBytes, 4), 0)
		wantError(t, "while it is forgotten", err, ErrFull)
		if err := s.verify(settled); err != nil {
			t.Errorf("an object was evicted in vain: %v", err)
		}
		f.forget()
		if err := s.Local().Drop(held[1]); err != nil {
			t.Fatal(err)
		}
	})
}

// TestStayingObjectsTakeSpace: memory that is never forgotten takes space, for which other objects are
// evicted, and no writer waits for it.
func TestStayingObjectsTakeSpace(t *testing.T) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		s, f := create(t, withLarge(memory)), &forgetful{late: true} // three fit
		s.OnLarge(f.made)
		rung := 0
		s.OnRoom(func() { rung++ })
		settled := []Handle{mustPut(t, s, content(largeSize, 1), 0), mustPut(t, s, content(largeSize, 1), 0)}
		if err := drop(s, mustPut(t, s, content(largeSize, 1), 0)); err != nil {
			t.Fatal(err)
		}
		s.WantRoom(true)
		_, err := s.Put(content(largeSize, 3), 0)
		wantError(t, "before it is known that it stays", err, ErrFull)
		f.refuse()
		if rung == 0 {
			t.Error("the function of OnRoom was not called for memory that stays")
		}
		s.WantRoom(false)
		wantLarge(t, s, 2, 9*pageBytes)
		f.late = false
		mustPut(t, s, content(largeSize, 3), 0)
		wantLarge(t, s, 2, 9*pageBytes)
		if err := s.verify(settled[0]); err == nil {
			t.Error("the oldest was not evicted")
		}
		if err := s.verify(settled[1]); err != nil {
			t.Errorf("more than one was evicted: %v", err)
		}
		for range 2 { // as much as there is beside it, and no more
			mustPut(t, s, content(largeSize, 3), 0)
			wantLarge(t, s, 2, 9*pageBytes)
		}
	})
}
