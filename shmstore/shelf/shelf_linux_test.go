package shelf

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

const testFirst = 7 * Numbers

func newShelf(tb testing.TB) *Shelf {
	tb.Helper()
	s, err := New()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	s.Begin(testFirst)
	return s
}

func describe(tb testing.TB, s *Shelf) int {
	tb.Helper()
	fd, err := Describe(s.FD())
	if err != nil {
		tb.Fatal(err)
	}
	return fd
}

// newTaker is a taker with an open file description of its own, and who has witnessed it.
func newTaker(tb testing.TB, s *Shelf) (*Taker, *Witness) {
	tb.Helper()
	fd := describe(tb, s)
	kept, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	t, err := Open(fd, testFirst)
	if err != nil {
		tb.Fatal(err)
	}
	w := NewWitness(kept, testFirst)
	closed := sync.OnceFunc(w.Close)
	tb.Cleanup(func() { t.Close(); closed() })
	return t, w
}

func taker(tb testing.TB, s *Shelf) *Taker {
	tb.Helper()
	t, w := newTaker(tb, s)
	w.Close() // the taker's description is nobody else's
	w.fd = -1
	return t
}

func put(tb testing.TB, s *Shelf, tag uint64) uint64 {
	tb.Helper()
	number, ok := s.Put(Value{Offset: 10 * tag, Size: 100 * tag, Tag: tag})
	if !ok {
		tb.Fatal("nothing can be put")
	}
	return number
}

func (t *Taker) has(number, tag uint64) bool {
	_, ok := t.Take(number, tag)
	return ok
}

func TestTake(t *testing.T) {
	s := newShelf(t)
	one, other := taker(t, s), taker(t, s)
	number := put(t, s, 3)
	if number == 0 || !one.Has(number) || one.First() != testFirst {
		t.Fatalf("the number is %#x", number)
	}
	for name, take := range map[string]struct{ number, tag uint64 }{
		"with another tag":       {number, 4},
		"what was never put":     {number + 1, 3},
		"a turn later":           {number + Slots, 3},
		"before the first":       {testFirst - 1, 3},
		"the first, which is 0":  {testFirst, 0},
		"0":                      {0, 0},
		"behind the last":        {testFirst + Numbers, 3},
		"of another shelf there": {number + Numbers, 3},
	} {
		if one.has(take.number, take.tag) {
			t.Errorf("%s: got", name)
		}
		if take.number == number && !other.Free(number) {
			t.Errorf("%s: locked in vain", name)
		}
	}
	v, ok := one.Take(number, 3)
	if want := (Value{Offset: 30, Size: 300, Tag: 3}); !ok || v != want {
		t.Errorf("got %+v, %v, want %+v", v, ok, want)
	}
	if one.has(number, 3) {
		t.Error("got twice in one process")
	}
	if other.has(number, 3) || other.Claim(number) || other.Free(number) || other.Share(number) {
		t.Error("what one has can be had by another")
	}
	if !one.Free(number) {
		t.Error("what a taker has itself is in its own way")
	}
	s.Clear(number)
	if later := taker(t, s); later.has(number, 3) {
		t.Error("got after it was cleared")
	}
}

// TestClaim: who keeps account takes a value back like a taker, whether it lies there or not.
func TestClaim(t *testing.T) {
	s := newShelf(t)
	keeper, one := taker(t, s), taker(t, s)
	number := put(t, s, 1)
	if !keeper.Free(number) || !keeper.Claim(number) || keeper.Claim(number) {
		t.Error("a claim is for one time")
	}
	if one.has(number, 1) {
		t.Error("what is claimed was taken")
	}
	if !keeper.Claim(number+5) || keeper.Claim(testFirst+Numbers) || keeper.Free(testFirst+Numbers) || keeper.Share(testFirst-1) {
		t.Error("numbers of the shelf, whether there or not, can be claimed, and no others")
	}
	for range 5 {
		put(t, s, 1)
	}
	if one.has(number+5, 1) {
		t.Error("what was claimed before it was put was taken")
	}
}

// TestSlots: numbers rise, whatever is cleared when, and a full shelf takes nothing.
func TestSlots(t *testing.T) {
	s := newShelf(t)
	one := taker(t, s)
	last := uint64(0)
	lies := make(map[uint64]uint64) // tags
	fill := func(tag uint64) {
		t.Helper()
		for len(lies) < Slots {
			number := put(t, s, tag)
			if number <= last {
				t.Fatalf("number %#x behind %#x", number, last)
			}
			for other := range lies {
				if (other-number)%Slots == 0 {
					t.Fatalf("%#x and %#x have one slot", other, number)
				}
			}
			last = number
			lies[number] = tag
		}
		if number, ok := s.Put(Value{}); ok {
			t.Fatalf("a full shelf took %#x", number)
		}
	}
	fill(1)
	for i, number := range slices.Sorted(maps.Keys(lies)) {
		if i%100 == 7 || i == Slots-1 {
			s.Clear(number)
			s.Clear(number) // again: nothing
			delete(lies, number)
		}
	}
	fill(2)
	s.Clear(last + 1) // never put
	if _, ok := s.Put(Value{}); ok {
		t.Error("what was never put made room")
	}
	for number, tag := range lies {
		if v, ok := one.Take(number, tag); !ok || v.Size != 100*tag {
			t.Fatalf("%#x: %+v, %v", number, v, ok)
		}
	}
}

func TestNumbersUsedUp(t *testing.T) {
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, ok := s.Put(Value{}); ok {
		t.Error("something was put before the numbers were known")
	}
	s.Begin(testFirst)
	s.next = testFirst + Numbers - 2
	one := taker(t, s)
	for _, want := range []uint64{testFirst + Numbers - 2, testFirst + Numbers - 1} {
		if number := put(t, s, 1); number != want || !one.has(number, 1) {
			t.Errorf("number %#x, want %#x, and it can be had", number, want)
		}
	}
	if number, ok := s.Put(Value{}); ok {
		t.Errorf("behind the last number: %#x", number)
	}
}

// TestKept: a lock is kept until its slot has moved on, and then given up, with a few
// others.
func TestKept(t *testing.T) {
	for name, lock := range map[string]func(t *Taker, w *Witness, number uint64) bool{
		"Take":  func(t *Taker, _ *Witness, number uint64) bool { return t.has(number, 1) },
		"Claim": func(t *Taker, _ *Witness, number uint64) bool { return t.Claim(number) },
		"Share": func(t *Taker, w *Witness, number uint64) bool { return w.Share(number) && t.Share(number) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			one, other := taker(t, s), taker(t, s)
			// A reader that is gone, whose values are taken over. What it shares ends with it.
			_, gone := newTaker(t, s)
			first := put(t, s, 1)
			if !lock(one, gone, first) {
				t.Fatal("not to be had")
			}
			gone.Share(first) // or not
			unlockByte(gone.fd, first-testFirst)
			more := func() {
				for range 10 * tidyAt {
					number := put(t, s, 1)
					if !lock(one, gone, number) {
						t.Fatalf("%#x is not to be had", number)
					}
					unlockByte(gone.fd, number-testFirst)
					s.Clear(number)
				}
			}
			more()
			if other.Free(first) || other.Claim(first) || other.has(first, 1) {
				t.Error("the lock was given up before the slot had moved on")
			}
			s.Clear(first)
			if other.Free(first) {
				t.Error("the lock was given up with the value")
			}
			more()
			if !other.Free(first) {
				t.Error("the lock stays for ever")
			}
			if n := len(one.locked); n > 3*tidyAt {
				t.Errorf("%d locks are kept, of which one may be needed", n)
			}
		})
	}
}

func TestPutBack(t *testing.T) {
	s := newShelf(t)
	one, other := taker(t, s), taker(t, s)
	number := put(t, s, 1)
	if !one.has(number, 1) {
		t.Fatal("not to be had")
	}
	other.PutBack(number) // not its own
	if !one.Free(number) || other.Free(number) {
		t.Error("a lock was given up by somebody else")
	}
	one.PutBack(number)
	if !other.has(number, 1) {
		t.Error("what was put back is not to be had")
	}
	one.PutBack(number)
	if one.Free(number) {
		t.Error("a lock was given up twice")
	}
}

// TestWitness: it sees what anybody but its own taker has, keeps what that one had when it
// is gone, and hands it over without a moment in which it is nobody's.
func TestWitness(t *testing.T) {
	s := newShelf(t)
	keeper, other := taker(t, s), taker(t, s)
	one, w := newTaker(t, s)
	first, second := put(t, s, 1), put(t, s, 1)
	if !w.Alone(first) {
		t.Error("nobody has it")
	}
	if !one.has(first, 1) || !w.Alone(first) {
		t.Error("the taker's own lock is nobody else's")
	}
	if !other.has(second, 1) || w.Alone(second) || w.Share(second) {
		t.Error("it does not see what another has, or takes it over")
	}
	if keeper.Share(first) {
		t.Error("what the taker has for itself was shared")
	}
	one.Close()
	if one.has(first, 1) || one.Claim(first) || one.Free(first) || one.Share(first) {
		t.Error("a taker goes on after its end")
	}
	if other.has(first, 1) || other.Claim(first) || other.Free(first) {
		t.Error("what somebody had who is gone can be had while the witness is there")
	}
	if !w.Share(first) || other.has(first, 1) || !keeper.Share(first) || other.has(first, 1) {
		t.Error("it is not handed over, or somebody else's meanwhile")
	}
	w.Close()
	w.fd = -1
	if other.has(first, 1) || other.Free(first) {
		t.Error("what was handed over was lost with the witness")
	}
	s.Clear(first)
	for range 3 * tidyAt {
		number := put(t, s, 1)
		if !keeper.Claim(number) {
			t.Fatal("not to be had")
		}
		s.Clear(number)
	}
	if !other.Free(first) {
		t.Error("what was handed over is kept for ever")
	}
}

func TestCloseOfTaker(t *testing.T) {
	s := newShelf(t)
	one, other := taker(t, s), taker(t, s)
	number := put(t, s, 1)
	if !one.has(number, 1) {
		t.Fatal("not to be had")
	}
	one.Close()
	one.Close()
	one.PutBack(number)
	if one.FD() != -1 {
		t.Errorf("the descriptor of a closed taker is %d", one.FD())
	}
	if !other.has(number, 1) {
		t.Error("a closed taker without a witness has something")
	}
}

// TestOwnersEnd: what was mapped stays as it was.
func TestOwnersEnd(t *testing.T) {
	s := newShelf(t)
	one := taker(t, s)
	number := put(t, s, 1)
	s.Publish(number)
	s.Close()
	if one.Published() != number || !one.has(number, 1) {
		t.Error("what lay there is not to be had when the owner is gone")
	}
}

func TestPublished(t *testing.T) {
	s := newShelf(t)
	one := taker(t, s)
	if one.Published() != 0 {
		t.Error("something was published")
	}
	number := put(t, s, 1)
	if one.Published() != 0 {
		t.Error("what was put is published")
	}
	if s.Publish(number); one.Published() != number {
		t.Errorf("published is %#x, want %#x", one.Published(), number)
	}
}

// TestOneGetsIt: of many who take one value at a time, one gets it.
func TestOneGetsIt(t *testing.T) {
	s := newShelf(t)
	const takers, values = 4, 500
	var numbers []uint64
	for range values {
		numbers = append(numbers, put(t, s, 1))
	}
	got := make([][]uint64, takers)
	var all sync.WaitGroup
	for i := range takers {
		one := taker(t, s)
		all.Go(func() {
			for _, n := range numbers {
				if one.has(n, 1) {
					got[i] = append(got[i], n)
				}
			}
		})
	}
	all.Wait()
	union := slices.Concat(got...)
	slices.Sort(union)
	if !slices.Equal(union, numbers) {
		t.Errorf("%d values were got, of %d, each by one", len(union), values)
	}
}

func TestBadDescriptors(t *testing.T) {
	memfd := func(t *testing.T, size int64, seals int) int {
		t.Helper()
		fd, err := unix.MemfdCreate("bad", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err == nil {
			err = unix.Fallocate(fd, 0, 0, size)
		}
		if err == nil && seals != 0 {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		}
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE
	for name, bad := range map[string]func(t *testing.T) int{
		"too small":        func(t *testing.T) int { return memfd(t, Bytes-4096, sealed) },
		"too large":        func(t *testing.T) int { return memfd(t, Bytes+4096, sealed) },
		"not sealed":       func(t *testing.T) int { return memfd(t, Bytes, 0) },
		"can be written":   func(t *testing.T) int { return memfd(t, Bytes, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW) },
		"can shrink":       func(t *testing.T) int { return memfd(t, Bytes, unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE) },
		"without its sign": func(t *testing.T) int { return memfd(t, Bytes, sealed) },
		"a file": func(t *testing.T) int {
			f, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := f.Truncate(Bytes); err != nil {
				t.Fatal(err)
			}
			fd, err := unix.Dup(int(f.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			return fd
		},
		"a pipe": func(t *testing.T) int {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			unix.Close(p[1])
			return p[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			fd := bad(t)
			if one, err := Open(fd, testFirst); !errors.Is(err, shmstore.ErrProtocol) {
				t.Errorf("%v, %v, want ErrProtocol", one, err)
			}
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
				t.Errorf("the descriptor is open: %v", err)
			}
		})
	}
	if fd, err := Describe(-1); err == nil {
		t.Errorf("a description of nothing: %d", fd)
	}
}

// TestReadOnly: there is no lock without the right to write, and so nothing can be taken.
func TestReadOnly(t *testing.T) {
	s := newShelf(t)
	number := put(t, s, 1)
	fd, err := unix.Open(fmt.Sprint("/proc/self/fd/", s.FD()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	one, err := Open(fd, testFirst)
	if err != nil {
		return // as well
	}
	defer one.Close()
	if one.has(number, 1) || one.Claim(number) {
		t.Error("got without a lock")
	}
	if other := taker(t, s); !other.has(number, 1) {
		t.Error("a reader without rights keeps others from it")
	}
}
