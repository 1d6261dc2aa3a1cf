package shmstore

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	// sealsOfPeer must be on whatever a peer hands over: it can neither
	// shrink, which would make an access here fatal, nor grow, nor be mapped
	// writable again, nor lose these seals.
	sealsOfPeer = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL

	// maxInterrupts bounds how often preallocation starts again after a
	// signal. It makes no progress in between.
	maxInterrupts = 64

	statBlockBytes = 512
)

// newSharedSegment makes a memfd of its final size, with every page allocated
// and mapped, and seals it: from here on only this mapping can write to it.
func newSharedSegment(kind segmentKind, sizeBytes int) (seg *segment, err error) {
	fd, err := openMemfd(kind.String())
	if err != nil {
		return nil, err
	}
	seg = &segment{fd: fd}
	defer func() {
		if err != nil {
			seg.release()
		}
	}()
	if err := unix.Ftruncate(fd, int64(sizeBytes)); err != nil {
		return seg, fmt.Errorf("set size: %w", err)
	}
	if err := preallocate(fd, int64(sizeBytes)); err != nil {
		return seg, fmt.Errorf("allocate: %w", err)
	}
	seg.data, err = unix.Mmap(fd, 0, sizeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return seg, fmt.Errorf("map: %w", err)
	}
	prefault(seg.data, unix.Madvise)
	// A forked child would share the mapping and could write through it.
	if err := unix.Madvise(seg.data, unix.MADV_DONTFORK); err != nil {
		return seg, fmt.Errorf("keep from children: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealsOfPeer); err != nil {
		return seg, fmt.Errorf("seal: %w", err)
	}
	return seg, nil
}

// openMemfd asks for memory that cannot be executed, which some systems
// insist on and kernels before 6.3 do not know.
func openMemfd(name string) (fd int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = unix.MemfdCreate("omnibus-"+name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("omnibus-"+name, flags)
	}
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	return fd, nil
}

// preallocate backs the whole file with pages.
func preallocate(fd int, sizeBytes int64) error {
	for range maxInterrupts {
		err := unix.Fallocate(fd, 0, 0, sizeBytes)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return unix.EINTR
}

// prefault maps every page of a segment that is still all zeroes, so that its
// first use costs no fault. Kernels before 5.14 cannot do it at once.
func prefault(b []byte, madvise func([]byte, int) error) {
	if madvise(b, unix.MADV_POPULATE_WRITE) == nil {
		return
	}
	for i := 0; i < len(b); i += pageBytes {
		b[i] = 0
	}
}

// openSegment maps a descriptor received from a peer, read-only, after it was
// found to be sealed, of exactly the right size, and without holes: reading a
// hole would allocate memory on our account. It owns fd from here on, also if
// it fails.
func openSegment(kind segmentKind, fd, sizeBytes int) (*segment, error) {
	seg := &segment{fd: fd}
	err := inspect(fd, sizeBytes)
	if err == nil {
		seg.data, err = unix.Mmap(fd, 0, sizeBytes, unix.PROT_READ, unix.MAP_SHARED)
	}
	if err == nil {
		err = unix.Madvise(seg.data, unix.MADV_DONTFORK)
	}
	if err != nil {
		seg.release()
		return nil, fmt.Errorf("open the peer's %v: %w", kind, err)
	}
	return seg, nil
}

// inspect checks a descriptor from a peer without touching its memory.
func inspect(fd, sizeBytes int) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("%w: not a memfd: %w", ErrProtocol, err)
	}
	if missing := sealsOfPeer &^ seals; missing != 0 {
		return fmt.Errorf("%w: seals %#x are missing", ErrProtocol, missing)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	if st.Size != int64(sizeBytes) {
		return fmt.Errorf("%w: %d bytes instead of %d", ErrProtocol, st.Size, sizeBytes)
	}
	if allocated := st.Blocks * statBlockBytes; allocated < int64(sizeBytes) {
		return fmt.Errorf("%w: only %d of %d bytes are allocated", ErrProtocol, allocated, sizeBytes)
	}
	return nil
}

// release gives the memory back. Nobody may hold a view of it; but a method
// that raced with a close may still be reading counters, and must not fault.
// So zeroes take the segment's place in the address space, where such a
// method finds a store without objects. They cost no memory, and go when
// nothing refers to the segment any more.
func (seg *segment) release() {
	if seg == nil || seg.released {
		return
	}
	seg.released = true
	if seg.fd >= 0 {
		unix.Close(seg.fd)
		seg.fd = -1
		if len(seg.data) > 0 {
			replaceByZeroes(seg.data)
			runtime.AddCleanup(seg, func(b []byte) { _ = unix.Munmap(b) }, seg.data)
		}
	}
}

// systemProbe reads the limits of this process.
var systemProbe = memoryProbe{proc: os.DirFS("/proc"), cgroup: os.DirFS("/sys/fs/cgroup")}

func checkHeadroom(needBytes uint64) error { return systemProbe.check(needBytes) }
