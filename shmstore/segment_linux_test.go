package shmstore

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

const segmentTestBytes = 3*pageBytes + 100 // no multiple of pages

func mustSegment(t testing.TB, s *Segment, err error) *Segment {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// dup returns a duplicate of a descriptor, for passing on.
func dup(t testing.TB, fd int) int {
	t.Helper()
	given, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return given
}

// wantTight fails the test if a process could still change the segment through
// this descriptor.
func wantTight(t *testing.T, s *Segment) {
	t.Helper()
	fd := s.FD()
	if _, err := unix.Pwrite(fd, []byte{1}, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write: %v", err)
	}
	if _, err := unix.Mmap(fd, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EPERM) {
		t.Errorf("map writable: %v", err)
	}
	for _, size := range []int64{0, 1 << 20} {
		if err := unix.Ftruncate(fd, size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v", size, err)
		}
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, pageBytes); !errors.Is(err, unix.EPERM) {
		t.Errorf("punch a hole: %v", err)
	}
}

func TestSegmentOfThisProcess(t *testing.T) {
	made, err := NewSegment("results", segmentTestBytes)
	own := mustSegment(t, made, err)
	wantTight(t, own)
	fill(own.Bytes(), 2)
	opened, err := OpenSegment("results", dup(t, own.FD()), segmentTestBytes)
	other := mustSegment(t, opened, err)
	if !bytes.Equal(other.Bytes(), content(segmentTestBytes, 2)) {
		t.Error("the reader does not see the bytes that were written")
	}
}

// TestSegmentClose: no descriptor is left, and late accesses do not fault.
func TestSegmentClose(t *testing.T) {
	before := openDescriptors(t)
	s, err := NewSegment("closed", segmentTestBytes)
	if err != nil {
		t.Fatal(err)
	}
	fill(s.Bytes(), 1)
	var stragglers sync.WaitGroup
	started := make(chan struct{}, 4)
	closed := make(chan struct{})
	for range cap(started) {
		stragglers.Go(func() {
			for i := 0; ; i++ {
				_, _ = s.Bytes()[i%segmentTestBytes], s.FD()
				if i == 0 {
					started <- struct{}{}
				}
				select {
				case <-closed:
					if i > segmentTestBytes {
						return
					}
				default:
				}
			}
		})
	}
	for range cap(started) {
		<-started
	}
	s.Close()
	s.Close()
	close(closed)
	stragglers.Wait()
	if s.FD() != -1 || s.Bytes()[0] != 0 || s.Size() != segmentTestBytes {
		t.Errorf("after Close: descriptor %d, first byte %d, %d bytes", s.FD(), s.Bytes()[0], s.Size())
	}
	if after := openDescriptors(t); after != before {
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
}

// memfdWith makes a memfd as a peer may send it.
func memfdWith(t *testing.T, size, allocated int64, seals int) int {
	t.Helper()
	fd, err := openMemfd("hostile")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if allocated > 0 {
		if err := headroom.Allocate(fd, allocated); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestHostileSegments: an invalid segment of a peer is refused with a typed error, and its
// descriptor is closed.
func TestHostileSegments(t *testing.T) {
	const size = segmentTestBytes
	for _, tc := range []struct {
		name   string
		fd     func(t *testing.T) int
		size   int64
		reason error
		text   string
	}{
		{name: "can shrink", fd: func(t *testing.T) int { return memfdWith(t, size, size, sealsOfPeer&^unix.F_SEAL_SHRINK) }, text: "F_SEAL_SHRINK is missing"},
		{name: "can grow", fd: func(t *testing.T) int { return memfdWith(t, size, size, sealsOfPeer&^unix.F_SEAL_GROW) }, text: "F_SEAL_GROW is missing"},
		{name: "can be written", fd: func(t *testing.T) int { return memfdWith(t, size, size, sealsOfPeer&^unix.F_SEAL_FUTURE_WRITE) }, text: "F_SEAL_FUTURE_WRITE is missing"},
		{name: "can be sealed", fd: func(t *testing.T) int { return memfdWith(t, size, size, sealsOfPeer&^unix.F_SEAL_SEAL) }, text: "F_SEAL_SEAL is missing"},
		{name: "no seals", fd: func(t *testing.T) int { return memfdWith(t, size, size, 0) }, text: "F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL are missing"},
		{name: "too small", fd: func(t *testing.T) int { return memfdWith(t, size-1, size-1, sealsOfPeer) }, text: "instead of"},
		{name: "too large", fd: func(t *testing.T) int { return memfdWith(t, size+1, size+1, sealsOfPeer) }, text: "instead of"},
		{name: "holes", fd: func(t *testing.T) int { return memfdWith(t, size, pageBytes, sealsOfPeer) }, text: "are allocated"},
		{name: "no memfd", fd: func(t *testing.T) int { return dup(t, int(os.Stdin.Fd())) }, text: "not a memfd"},
		{name: "no bytes", fd: func(t *testing.T) int { return memfdWith(t, size, size, sealsOfPeer) }, size: -1, reason: ErrSize, text: "not in"},
		{name: "all bytes there are", fd: func(t *testing.T) int { return memfdWith(t, size, size, sealsOfPeer) }, size: 1 << 62, reason: ErrSize, text: "not in"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want, reason := int64(size), ErrProtocol
			if tc.reason != nil {
				want, reason = tc.size, tc.reason
			}
			before := openDescriptors(t)
			s, err := OpenSegment("theirs", tc.fd(t), want)
			if s != nil || !errors.Is(err, reason) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("got %v, want %v with %q", err, reason, tc.text)
			}
			if after := openDescriptors(t); after != before {
				t.Errorf("%d descriptors are open, %d were before", after, before)
			}
		})
	}
}

// TestSegmentRefusesTooMuch: the refusal has the figures, and comes before anything is made.
func TestSegmentRefusesTooMuch(t *testing.T) {
	before := openDescriptors(t)
	_, err := NewSegment("huge", 1<<45)
	var refused *MemoryError
	if !errors.As(err, &refused) || refused.NeededBytes != 1<<45 || refused.Limit == "" {
		t.Errorf("error %v, want a *MemoryError", err)
	}
	_, err = NewSegment("none", 0)
	wantError(t, "of no bytes", err, ErrSize)
	if after := openDescriptors(t); after != before {
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
}

// TestSegmentNames: names may come from outside.
func TestSegmentNames(t *testing.T) {
	for _, name := range []string{strings.Repeat("long ", 100) + "\x00", "with\x00zero"} {
		made, err := NewSegment(name, pageBytes)
		mustSegment(t, made, err)
	}
}

// TestSegmentNotInherited: a child of this process has neither the mapping nor
// the descriptor.
func TestSegmentNotInherited(t *testing.T) {
	made, err := NewSegment("kept", pageBytes)
	mustSegment(t, made, err)
	child := exec.Command("ls", "-l", "/proc/self/fd")
	out, err := child.Output()
	if err != nil {
		t.Skipf("no ls on this system: %v", err)
	}
	if strings.Contains(string(out), "omnibus-kept") {
		t.Errorf("a child has the segment:\n%s", out)
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer smaps.Close()
	text, err := io.ReadAll(smaps)
	if err != nil {
		t.Fatal(err)
	}
	_, mapping, found := strings.Cut(string(text), "memfd:omnibus-kept")
	flags, _, _ := strings.Cut(mapping[max(0, strings.Index(mapping, "VmFlags:")):], "\n")
	if !found || !strings.Contains(flags, " dc") {
		t.Errorf("flags of the mapping %q, want dc: not copied by a fork", flags)
	}
}
