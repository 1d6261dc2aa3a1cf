package shelf

import (
	"encoding/binary"
	"sync"
	"testing"
)

// FuzzTaker: whatever the owner writes into its memory, a taker gets what is in the slot of
// the number that it wants, of that tag, and each number once. The input is steps of 17
// bytes: what to do, and two words.
func FuzzTaker(f *testing.F) {
	step := func(what byte, a, b uint64) []byte {
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64([]byte{what}, a), b)
	}
	f.Add(step(2, testFirst+1, 0))
	f.Add(append(step(0, 4096+32, testFirst+1), step(2, testFirst+1, 0)...))
	f.Add(append(step(1, testFirst+1, 9), step(2, testFirst+1, 9)...))
	f.Add(append(append(step(1, testFirst+1, 9), step(2, testFirst+1, 9)...), step(4, testFirst+1, 0)...))
	f.Add(append(step(0, 4096, 1<<63), step(3, 1<<63, ^uint64(0))...))
	f.Fuzz(func(t *testing.T, steps []byte) {
		s := newShelf(t)
		one := taker(t, s)
		got := make(map[uint64]bool) // or claimed
		for range 200 {              // more would find no more
			if len(steps) < 17 {
				break
			}
			what, a, b := steps[0]%6, binary.LittleEndian.Uint64(steps[1:]), binary.LittleEndian.Uint64(steps[9:])
			steps = steps[17:]
			switch what {
			case 0: // any word of the memory
				binary.NativeEndian.PutUint64(s.mem.Bytes()[a%(Bytes/8)*8:], b)
			case 1: // a value
				at := s.slot(a)
				at.offset.Store(a ^ b)
				at.size.Store(b + 1)
				at.tag.Store(b)
				at.number.Store(a)
			case 2:
				number, at := a, s.slot(a)
				v, ok := one.Take(number, b)
				want := at.number.Load() == number && at.tag.Load() == b && number-testFirst < Numbers && !got[number]
				if ok != want {
					t.Fatalf("%#x of tag %#x: got %v, want %v", number, b, ok, want)
				}
				if ok && v != (Value{Offset: at.offset.Load(), Size: at.size.Load(), Tag: b}) {
					t.Fatalf("%#x: %+v", number, v)
				}
				got[number] = got[number] || ok
			case 3:
				if ok := one.Claim(a); ok && (got[a] || a-testFirst >= Numbers) {
					t.Fatalf("%#x was claimed, and was got before: %v", a, got[a])
				}
				_ = one.Free(a)
				_ = one.Published()
				got[a] = true // or is none of the shelf's
			case 4:
				one.PutBack(a)
				delete(got, a)
			case 5: // as the owner should
				if number, ok := s.Put(Value{Offset: a, Size: b, Tag: a}); ok && number-testFirst >= Numbers {
					t.Fatalf("put as %#x", number)
				}
			}
			// What the slot does not hold any more may be given up, and be had again.
			for number := range got {
				if _, locked := one.locked[number]; !locked && number-testFirst < Numbers {
					delete(got, number)
				}
			}
		}
	})
}

// TestScribbler: a taker ends, and panics at nothing, while the owner writes.
func TestScribbler(t *testing.T) {
	s := newShelf(t)
	one := taker(t, s)
	stop := make(chan struct{})
	var scribbler sync.WaitGroup
	scribbler.Go(func() {
		for n := uint64(0); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			at := s.slot(n)
			at.number.Store(testFirst + n%(2*Slots))
			at.tag.Store(n % 2)
			at.size.Store(^n)
			s.page.published.Store(^n)
		}
	})
	got := make(map[uint64]bool)
	for i := range uint64(10_000) {
		number := testFirst + i%(2*Slots)
		_, ok := one.Take(number, 1)
		if ok && got[number] {
			if _, locked := one.locked[number]; !locked {
				t.Fatalf("%#x was got without its lock", number)
			}
		}
		got[number] = ok
		if len(one.locked) > 2*Slots {
			t.Fatalf("%d locks", len(one.locked))
		}
	}
	close(stop)
	scribbler.Wait()
}
