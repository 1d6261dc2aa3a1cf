package shmstore

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

// openFiles counts the descriptors of this process.
func openFiles(t *testing.T) int { return openDescriptors(t) }

// handOver gives a reader the segment of an object.
func handOver(t testing.TB, s *Store, r *Reader, h Handle) {
	t.Helper()
	fd, size, err := s.LargeSegment(h)
	if err != nil || size < int64(h.Size) || size%pageBytes != 0 {
		t.Fatalf("a segment of %d bytes for %v, %v", size, h, err)
	}
	if err := r.AddSegment(h, dup(t, fd)); err != nil {
		t.Fatal(err)
	}
}

// TestLargeHeadroom: when memory runs out, large objects are evicted, the oldest first;
// when none can be evicted, the error has the figures, and nothing is left behind.
func TestLargeHeadroom(t *testing.T) {
	s := create(t, withLarge(Shared))
	old := mustPut(t, s, content(largeSize, 1), 0)
	held := mustPut(t, s, content(largeSize, 2), Readers(0))
	looks := 0
	scarce(t, func() int64 {
		if looks++; looks == 1 {
			return 0
		}
		return 1 << 30
	})
	mustPut(t, s, content(2000, 3), 0)
	if looks != 2 {
		t.Errorf("the free memory was checked %d times, want 2", looks)
	}
	_, err := s.Local().Pin(old)
	wantError(t, "the oldest", err, ErrStale)
	s.FreeUnused()
	scarce(t, func() int64 { return 1 << 10 })
	before := s.Stats()
	descriptors := openFiles(t)
	_, err = s.Put(content(largeSize, 4), Readers(0))
	var refused *MemoryError
	if !errors.As(err, &refused) || refused.NeededBytes != 3*pageBytes || refused.AvailableBytes != 1<<10 {
		t.Errorf("no memory: %v", err)
	}
	if after := s.Stats(); after != before {
		t.Errorf("the refusal left %+v, want %+v", after, before)
	}
	if got := openFiles(t); got != descriptors {
		t.Errorf("%d descriptors are open, %d were before", got, descriptors)
	}
	wantBytes(t, s.Local().Take, held, content(largeSize, 2))
	mustPut(t, s, content(100, 5), 0)
}

// scarce makes this process see so many free bytes until the test ends.
func scarce(t *testing.T, available func() int64) {
	t.Helper()
	before := systemProbe
	t.Cleanup(func() { systemProbe = before })
	systemProbe = &limits{probe: headroom.Probe{Proc: meminfo(available), Cgroup: fstest.MapFS{}}}
}

// meminfo is a /proc with this file only.
type meminfo func() int64

func (m meminfo) Open(name string) (fs.File, error) {
	text := fmt.Sprintf("MemAvailable: %d kB\n", m()>>10)
	return fstest.MapFS{"meminfo": {Data: []byte(text)}}.Open(name)
}

func (m meminfo) ReadFile(name string) ([]byte, error) {
	if name != "meminfo" {
		return nil, fs.ErrNotExist
	}
	return fmt.Appendf(nil, "MemAvailable: %d kB\n", m()>>10), nil
}

// TestLargeInAnotherProcess: a reader lacks the segment until it gets
// it, can drop the delivery without it, and loses no debt by a failed Take.
func TestLargeInAnotherProcess(t *testing.T) {
	s := create(t, withLarge(Shared))
	r := attachHere(t, s)
	defer r.Close()
	h := mustPut(t, s, content(largeSize, 1), Readers(r.ID()))
	for verb, take := range map[string]func(Handle) (Lease, error){"Take": r.Take, "Pin": r.Pin} {
		_, err := take(h)
		wantError(t, verb+" without the segment", err, ErrSegment)
	}
	if open := r.openLeases(); open != 0 {
		t.Errorf("%d pins or debts are left of it", open)
	}
	before := openDescriptors(t)
	handOver(t, s, r, h)
	handOver(t, s, r, h)
	if got := openDescriptors(t); got != before+1 {
		t.Errorf("%d descriptors are open, want one more than %d", got, before)
	}
	wantBytes(t, r.Take, h, content(largeSize, 1))
	_, err := r.Take(h)
	wantError(t, "a second Take", err, ErrNoDebt)
	wantBytes(t, r.Pin, h, content(largeSize, 1))

	l := mustLease(t, r.Pin, h)
	if s.FreeUnused() != 0 {
		t.Error("a pinned object was freed")
	}
	r.DropSegments()
	if !bytes.Equal(l.Bytes(), content(largeSize, 1)) {
		t.Error("the bytes changed under a pin")
	}
	l.Release()

	declined := mustPut(t, s, content(largeSize, 2), Readers(r.ID()))
	if err := r.Drop(declined); err != nil {
		t.Errorf("Drop: %v", err)
	}
	s.FreeUnused()
	wantLarge(t, s, 0, 0)
	_, err = r.Pin(h)
	wantError(t, "after it was freed", err, ErrStale)
	r.DropSegments()
	if got := openDescriptors(t); got != before-1 { // the store has none left either
		t.Errorf("%d descriptors are open, want one less than %d", got, before)
	}
}

// TestLargeSlotReused: a segment does not outlive the use of its slot, and is
// not taken for that of the next object.
func TestLargeSlotReused(t *testing.T) {
	s := create(t, withLarge(Shared))
	r := attachHere(t, s)
	defer r.Close()
	descriptors := -1
	var last Handle
	for i := range 5 {
		h := mustPut(t, s, content(largeSize, uint64(i)), Readers(r.ID()))
		if i > 0 && h.Slot != last.Slot {
			t.Fatal("the slot was not used again")
		}
		_, err := r.Take(h)
		wantError(t, "with the segment of another", err, ErrSegment)
		handOver(t, s, r, h)
		wantBytes(t, r.Take, h, content(largeSize, uint64(i)))
		if got := len(r.large.objects); got != 1 {
			t.Errorf("the reader has %d segments", got)
		}
		if got := openDescriptors(t); descriptors >= 0 && got != descriptors {
			t.Errorf("%d descriptors are open, %d were a round ago", got, descriptors)
		} else {
			descriptors = got
		}
		s.FreeUnused()
		last = h
	}
}

// TestAddSegmentRefuses: for every bad descriptor, and every bad handle,
// the error is typed and the descriptor is closed.
func TestAddSegmentRefuses(t *testing.T) {
	const size = 3 * pageBytes
	s := create(t, withLarge(Shared))
	r := attachHere(t, s)
	defer r.Close()
	stale := mustPut(t, s, content(largeSize, 1), 0)
	s.FreeUnused()
	inArena := mustPut(t, s, content(100, 2), 0)
	good := mustPut(t, s, content(largeSize, 2), Readers(r.ID()))
	forged := func(change func(*Handle)) Handle {
		h := good
		change(&h)
		return h
	}
	for _, tc := range []struct {
		name  string
		h     Handle
		size  int64
		holes bool
		seals int
		want  error
	}{
		{name: "stale", h: stale, size: size, seals: sealsOfPeer, want: ErrStale},
		{name: "in the arena", h: inArena, size: size, seals: sealsOfPeer, want: ErrUnsupported},
		{name: "another store", h: forged(func(h *Handle) { h.Store++ }), size: size, seals: sealsOfPeer, want: ErrCorrupt},
		{name: "another size", h: forged(func(h *Handle) { h.Size-- }), size: size, seals: sealsOfPeer, want: ErrCorrupt},
		{name: "no object", h: Handle{}, size: size, seals: sealsOfPeer, want: ErrCorrupt},
		{name: "too small", h: good, size: largeSize - 1, seals: sealsOfPeer, want: ErrProtocol},
		{name: "holes", h: good, size: size, holes: true, seals: sealsOfPeer, want: ErrProtocol},
		{name: "can shrink", h: good, size: size, seals: sealsOfPeer &^ unix.F_SEAL_SHRINK, want: ErrProtocol},
		{name: "can be written", h: good, size: size, seals: sealsOfPeer &^ unix.F_SEAL_FUTURE_WRITE, want: ErrProtocol},
	} {
		before := openDescriptors(t)
		allocated := tc.size
		if tc.holes {
			allocated = 0
		}
		wantError(t, tc.name, r.AddSegment(tc.h, memfdWith(t, tc.size, allocated, tc.seals)), tc.want)
		if got := openDescriptors(t); got != before {
			t.Errorf("%s: %d descriptors are open, %d were before", tc.name, got, before)
		}
	}
	if _, err := r.Take(good); !errors.Is(err, ErrSegment) {
		t.Errorf("a good segment after the refusals: %v", err)
	}
	handOver(t, s, r, good)
	wantBytes(t, r.Take, good, content(largeSize, 2))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	before := openDescriptors(t)
	wantError(t, "after Close", r.AddSegment(good, memfdWith(t, size, size, sealsOfPeer)), ErrClosed)
	if got := openDescriptors(t); got != before {
		t.Errorf("after Close: %d descriptors are open, %d were before", got, before)
	}
}

// TestLargeOwnerGone: the segments that a reader was given outlive the store.
func TestLargeOwnerGone(t *testing.T) {
	s := create(t, withLarge(Shared))
	r := attachHere(t, s)
	h := mustPut(t, s, content(largeSize, 1), Readers(r.ID()))
	handOver(t, s, r, h)
	l := mustLease(t, r.Take, h)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(l.Bytes(), content(largeSize, 1)) {
		t.Error("the bytes are gone with the owner")
	}
	l.Release()
	late, err := newSegment(Shared, kindLarge, pageBytes)
	if err != nil {
		t.Fatal(err)
	}
	before := openDescriptors(t)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	// An AddSegment after whose checks the reader was closed.
	wantError(t, "a segment after Close", r.large.add(h.Gen, largeObject{segment: late}), ErrClosed)
	const mapped = 5 // arena, directory, account, ledger and the large object
	if got := openDescriptors(t); got != before-mapped-1 {
		t.Errorf("%d descriptors are open, want those of %d and one less than %d", got, mapped, before)
	}
}

// TestKilledWithLarge kills a process that holds a large object. Its memory
// is freed with its debts.
func TestKilledWithLarge(t *testing.T) {
	for name, command := range map[string]byte{"taken": askHold, "pinned": askPin} {
		t.Run(name, func(t *testing.T) {
			s := create(t, withLarge(Shared))
			before := openDescriptors(t)
			c := startChild(t, "")
			id, err := s.Admit(c.conn)
			if err != nil {
				t.Fatal(err)
			}
			data := make([]byte, largeSize)
			sealed(data, 1)
			h := mustPut(t, s, data, Readers(id))
			fd, _, err := s.LargeSegment(h)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.give(h, fd); err != nil {
				t.Fatal(err)
			}
			if err := c.ask(command, h); err != nil {
				t.Fatal(err)
			}
			if s.FreeUnused() != 0 {
				t.Error("the object that the child holds was freed")
			}
			if err := unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0); err != nil {
				t.Fatal(err)
			}
			if status := c.awaitDeath(t); status.Signal() != syscall.SIGKILL {
				t.Fatalf("the child ended with %v", status)
			}
			if err := s.RemoveReader(id); err != nil {
				t.Fatal(err)
			}
			wantClean(t, s)
			if left := freeAll(s); left != 0 {
				t.Errorf("%d objects are left of a dead reader", left)
			}
			wantLarge(t, s, 0, 0)
			c.conn.Close()
			unix.Close(c.pidfd)
			c.pidfd = -1
			if got := openDescriptors(t); got != before {
				t.Errorf("%d descriptors are open, %d were before", got, before)
			}
		})
	}
}
