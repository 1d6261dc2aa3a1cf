package shmstore

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

// filling is a store that takes its memory as it fills it.
func filling(t *testing.T) *Store {
	t.Helper()
	return create(t, Options{ArenaBytes: 64 << 20, Memory: Shared, Reuse: true})
}

// allocatedBytes is the memory behind a descriptor.
func allocatedBytes(t *testing.T, fd int) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * statBlockBytes
}

// TestMemoryComesWithPayloads: a store with Reuse takes little more memory than its payloads
// need at the same time.
func TestMemoryComesWithPayloads(t *testing.T) {
	s := filling(t)
	taken := func() int64 {
		return allocatedBytes(t, s.arenaSegment.fd) + allocatedBytes(t, s.directorySegment.fd)
	}
	if got := taken(); got > 2*fillBytes {
		t.Errorf("an empty store has %d bytes, want at most %d", got, 2*fillBytes)
	}
	const size, atOnce = 1 << 20, 3
	for range 20 {
		var held []Handle
		for i := range atOnce {
			held = append(held, mustPut(t, s, content(size, uint64(i)), Readers(LocalReader)))
		}
		for i, h := range held {
			wantBytes(t, s.Local().Take, h, content(size, uint64(i)))
		}
	}
	if got, most := taken(), int64((atOnce+1)*(size+fillBytes)+2*fillBytes); got > most {
		t.Errorf("after payloads of %d bytes, %d at a time, the store has %d bytes, want at most %d", size, atOnce, got, most)
	}
	wantClean(t, s)
}

// TestFullForWantOfMemory: if the machine has no more memory, a store is full with its present
// memory, the error has the reason, and the store goes on with that memory.
func TestFullForWantOfMemory(t *testing.T) {
	const size = 1 << 20
	s := filling(t)
	held := mustPut(t, s, content(size, 1), Readers(LocalReader))
	available := int64(0)
	scarce(t, func() int64 { return available })
	_, err := s.Put(content(size, 2), Readers(LocalReader))
	var full *FullError
	if !errors.As(err, &full) || !errors.Is(err, ErrMemory) {
		t.Fatalf("error %v, want a *FullError for want of memory", err)
	}
	wantBytes(t, s.Local().Take, held, content(size, 1))
	h := mustPut(t, s, content(size, 3), Readers(LocalReader)) // where the first one was
	available = 1 << 40
	mustPut(t, s, content(size, 4), 0)
	wantBytes(t, s.Local().Take, h, content(size, 3))
	wantClean(t, s)
}

// TestFilled: for a segment that is filled from the front, Filled tells a reader how far the
// memory reaches, without taking memory on the reader's account.
func TestFilled(t *testing.T) {
	s := filling(t)
	mem, err := s.ArenaSegment()
	arena := mustSegment(t, mem, err)
	if arena.Filled(1) {
		t.Error("an arena without payloads has memory")
	}
	h := mustPut(t, s, content(5000, 1), 0)
	if end := int64(h.Offset + h.Size); !arena.Filled(end) || arena.Filled(arena.Size()) {
		t.Errorf("filled up to the payload: %t, up to the end: %t", arena.Filled(end), arena.Filled(arena.Size()))
	}
	if err := s.fillAll(); err != nil {
		t.Fatal(err)
	}
	if !arena.Filled(arena.Size()) || arena.Filled(arena.Size()+1) {
		t.Error("an arena with all its memory is not filled")
	}
	arena.Close()
	if !arena.Filled(arena.Size()) {
		t.Error("a closed segment reads as zero, and is not filled")
	}
}

// TestFilledByPeers: bytes in a hole count as not filled, and memory that the
// peer allocated, but never wrote to, counts as filled.
func TestFilledByPeers(t *testing.T) {
	const size = 8 * pageBytes
	whole, err := OpenFillingSegment("whole", memfdWith(t, size, size, sealsOfPeer), size)
	if !mustSegment(t, whole, err).Filled(size) {
		t.Error("a segment with all its memory is not filled")
	}
	fd := memfdWith(t, size, 0, 0)
	if err := headroom.AllocateAt(fd, size/2, size/2); err != nil { // as many bytes, behind the hole
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealsOfPeer); err != nil {
		t.Fatal(err)
	}
	before := allocatedBytes(t, fd)
	mem, err := OpenFillingSegment("holes", fd, size)
	holes := mustSegment(t, mem, err)
	if holes.Filled(1) || holes.Filled(size) {
		t.Error("a segment that begins with a hole is filled")
	}
	if after := allocatedBytes(t, holes.FD()); after != before {
		t.Errorf("asking took memory: %d bytes, %d before", after, before)
	}
	_, err = OpenFillingSegment("can shrink", memfdWith(t, size, size, sealsOfPeer&^unix.F_SEAL_SHRINK), size)
	wantError(t, "a segment that can shrink", err, ErrProtocol)
	_, err = OpenFillingSegment("short", memfdWith(t, size-1, size-1, sealsOfPeer), size)
	wantError(t, "a segment that is too short", err, ErrProtocol)
}

// TestReadersCannotAddPages: a process that gets the arena cannot make it take memory on its writer's account.
func TestReadersCannotAddPages(t *testing.T) {
	s := filling(t)
	mem, err := s.ArenaSegment()
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	before := allocatedBytes(t, s.arenaSegment.fd)
	if err := unix.Fallocate(mem.FD(), 0, 0, mem.Size()); !errors.Is(err, unix.EBADF) {
		t.Errorf("a reader allocates: %v, want EBADF", err)
	}
	if after := allocatedBytes(t, s.arenaSegment.fd); after != before {
		t.Errorf("the arena has %d bytes, and had %d", after, before)
	}
}
