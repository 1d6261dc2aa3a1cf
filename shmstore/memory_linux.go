package shmstore

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/headroom"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

const (
	// sealsOfPeer must be on every segment from a peer: the segment can neither
	// shrink, which would make an access here fatal, nor grow, nor be mapped
	// writable again, nor lose these seals.
	sealsOfPeer = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL

	statBlockBytes = 512
)

// newSharedSegment makes a memfd of its final size, with every page allocated
// and mapped, and seals it: from here on only this mapping can write to it.
func newSharedSegment(name string, sizeBytes int) (*segment, error) {
	return makeSegment(name, func(seg *segment) error {
		if err := seg.allocate(sizeBytes); err != nil {
			return err
		}
		seg.filled = sizeBytes
		return seg.mapWritable(sizeBytes)
	})
}

// newEmptySegment is newSharedSegment without the pages, which fill allocates.
func newEmptySegment(name string, sizeBytes int) (*segment, error) {
	return makeSegment(name, func(seg *segment) error {
		if err := seg.setSize(sizeBytes); err != nil {
			return err
		}
		return seg.mapAs(unix.PROT_READ|unix.PROT_WRITE, sizeBytes)
	})
}

// makeSegment makes a memfd that mapIt sizes and maps, and seals it. If a step fails, nothing
// is left.
func makeSegment(name string, mapIt func(*segment) error) (*segment, error) {
	fd, err := openMemfd(name)
	if err != nil {
		return nil, err
	}
	seg := &segment{fd: fd}
	if err = mapIt(seg); err == nil {
		err = seg.seal(sealsOfPeer)
	}
	if err != nil {
		seg.release()
		return nil, err
	}
	return seg, nil
}

// populate gives pages to the bytes up to endBytes. It allocates them first: an access
// would get its page as well, but if the machine has none, the process dies.
func (seg *segment) populate(endBytes int) error {
	sizeBytes := endBytes - seg.filled
	if err := checkSegmentHeadroom(uint64(sizeBytes)); err != nil {
		return err
	}
	if err := headroom.AllocateAt(seg.fd, int64(seg.filled), int64(sizeBytes)); err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	prefault(seg.data[seg.filled:endBytes], unix.Madvise)
	return nil
}

func (seg *segment) setSize(sizeBytes int) error {
	if err := unix.Ftruncate(seg.fd, int64(sizeBytes)); err != nil {
		return fmt.Errorf("set size: %w", err)
	}
	return nil
}

func (seg *segment) allocate(sizeBytes int) error {
	if err := seg.setSize(sizeBytes); err != nil {
		return err
	}
	if err := headroom.Allocate(seg.fd, int64(sizeBytes)); err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	return nil
}

func (seg *segment) seal(seals int) error {
	if _, err := unix.FcntlInt(uintptr(seg.fd), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	return nil
}

// mapWritable maps a segment that is still all zeroes.
func (seg *segment) mapWritable(sizeBytes int) error {
	if err := seg.mapAs(unix.PROT_READ|unix.PROT_WRITE, sizeBytes); err != nil {
		return err
	}
	prefault(seg.data, unix.Madvise)
	return nil
}

func (seg *segment) mapReadOnly(sizeBytes int) error { return seg.mapAs(unix.PROT_READ, sizeBytes) }

// mapAs maps the segment for this process alone: a forked child would share
// the mapping, and could write through it if it is writable.
func (seg *segment) mapAs(protection, sizeBytes int) (err error) {
	if seg.data, err = unix.Mmap(seg.fd, 0, sizeBytes, protection, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map: %w", err)
	}
	if err := unix.Madvise(seg.data, unix.MADV_DONTFORK); err != nil {
		return fmt.Errorf("keep from children: %w", err)
	}
	return nil
}

// openMemfd asks for memory that cannot be executed, which some systems
// require and kernels before 6.3 do not support.
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

// openSegment checks that a descriptor from a peer is sealed, of exactly the right
// size, and without holes, and maps it read-only: reading a hole would allocate memory
// on this process's account. It owns fd from here on, also if it fails.
func openSegment(name string, fd, sizeBytes int) (*segment, error) {
	seg, err := openSealed(name, fd, sizeBytes, inspectSize)
	if err == nil {
		seg.filled = sizeBytes
	}
	return seg, err
}

// openFillingSegment is openSegment for a segment that may have holes, which must not be
// read: see filledFrom.
func openFillingSegment(name string, fd, sizeBytes int) (*segment, error) {
	seg, err := openSealed(name, fd, sizeBytes, inspectLength)
	if err == nil && inspectSize(fd, sizeBytes) == nil {
		seg.filled = sizeBytes
	}
	return seg, err
}

func openSealed(name string, fd, sizeBytes int, inspectFile func(fd, sizeBytes int) error) (*segment, error) {
	seg := &segment{fd: fd}
	err := inspectSeals(fd, sealsOfPeer)
	if err == nil {
		err = inspectFile(fd, sizeBytes)
	}
	if err == nil {
		err = seg.mapReadOnly(sizeBytes)
	}
	if err != nil {
		seg.release()
		return nil, fmt.Errorf("open the peer's %s: %w", name, err)
	}
	return seg, nil
}

// filledFrom returns the offset of the first hole of a segment that has no hole before
// offset. The seals keep the segment's writer from making a hole before the returned offset
// later. The system also counts pages that were allocated and never written to as holes.
func (seg *segment) filledFrom(offset int64) int64 {
	if seg.released {
		return offset
	}
	hole, err := unix.Seek(seg.fd, offset, unix.SEEK_HOLE)
	if err != nil { // offset is the end
		return offset
	}
	return hole
}

// openLargeSegment is openSegment for the segment of a large object, of which
// only the least size is known.
func openLargeSegment(fd int, atLeast uint64) (*segment, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	switch {
	case err != nil:
		err = fmt.Errorf("stat: %w", err)
	case st.Size < 0 || uint64(st.Size) < atLeast || st.Size > maxSegmentBytes:
		err = fmt.Errorf("%w: %d bytes for an object of %d", ErrProtocol, st.Size, atLeast)
	}
	if err != nil {
		(&segment{fd: fd}).release()
		return nil, err
	}
	return openSegment(kindLarge.String(), fd, int(st.Size))
}

// inspectSeals checks a descriptor from a peer without touching its memory.
func inspectSeals(fd, wanted int) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("%w: not a memfd: %w", ErrProtocol, err)
	}
	if missing := wanted &^ seals; missing != 0 {
		return fmt.Errorf("%w: %s missing", ErrProtocol, sealNames(missing))
	}
	return nil
}

// inspectLength checks that a file has the expected size.
func inspectLength(fd, sizeBytes int) error {
	_, err := statOf(fd, sizeBytes)
	return err
}

// statOf returns the status of a file, which must have the expected size.
func statOf(fd, sizeBytes int) (st unix.Stat_t, err error) {
	if err := unix.Fstat(fd, &st); err != nil {
		return st, fmt.Errorf("stat: %w", err)
	}
	if st.Size != int64(sizeBytes) {
		return st, fmt.Errorf("%w: %d bytes instead of %d", ErrProtocol, st.Size, sizeBytes)
	}
	return st, nil
}

// inspectSize checks that a file has the expected size and all its pages.
func inspectSize(fd, sizeBytes int) error {
	st, err := statOf(fd, sizeBytes)
	if err != nil {
		return err
	}
	if allocated := st.Blocks * statBlockBytes; allocated < int64(sizeBytes) {
		return fmt.Errorf("%w: only %d of %d bytes are allocated", ErrProtocol, allocated, sizeBytes)
	}
	return nil
}

// sealNames lists seals by the names that the system gives them.
func sealNames(seals int) string {
	var names []string
	for _, s := range []struct {
		seal int
		name string
	}{
		{unix.F_SEAL_SHRINK, "F_SEAL_SHRINK"},
		{unix.F_SEAL_GROW, "F_SEAL_GROW"},
		{unix.F_SEAL_FUTURE_WRITE, "F_SEAL_FUTURE_WRITE"},
		{unix.F_SEAL_SEAL, "F_SEAL_SEAL"},
	} {
		if seals&s.seal != 0 {
			names = append(names, s.name)
		}
	}
	if len(names) == 1 {
		return "the seal " + names[0] + " is"
	}
	return "the seals " + strings.Join(names, ", ") + " are"
}

// release gives the memory back. No lease or reservation may hold a view of it; but a
// method that raced with a close may still be reading counters, and must not fault.
// So release maps zeroes at the segment's addresses, where such a method finds a store
// without objects. The zeroes cost no memory, and are unmapped when nothing refers to the
// segment any more.
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
var systemProbe = &limits{probe: headroom.System()}

// Reading the limits takes longer than making a small segment. So one check that finds
// cachedHeadroom free covers small segments that take no more together, for
// cachedHeadroomTime.
const (
	cachedHeadroom     = 16 << 20
	cachedHeadroomTime = 100 * time.Millisecond
	smallBytes         = 1 << 20
)

// limits are the memory limits of a process, with the rest of the last check's headroom.
type limits struct {
	probe headroom.Probe

	mu          lockorder.Mutex[lockorder.Limits] // guards what follows
	cachedBytes uint64
	until       time.Time
}

func checkHeadroom(needBytes uint64) error { return systemProbe.check(needBytes) }

// checkSegmentHeadroom is for segments of one payload each.
func checkSegmentHeadroom(needBytes uint64) error { return systemProbe.checkCached(needBytes) }

func (l *limits) check(needBytes uint64) error {
	if short := l.probe.Check(needBytes); short != nil {
		e := MemoryError(*short)
		return &e
	}
	return nil
}

// checkCached is check, which the cached headroom may answer.
func (l *limits) checkCached(needBytes uint64) error {
	small := needBytes <= smallBytes
	if small && l.takeCached(needBytes) {
		return nil
	}
	if small && l.probe.Check(cachedHeadroom) == nil {
		l.mu.Lock()
		l.cachedBytes, l.until = cachedHeadroom-needBytes, time.Now().Add(cachedHeadroomTime)
		l.mu.Unlock()
		return nil
	}
	return l.check(needBytes)
}

// takeCached reports whether the cached headroom covers a need, and subtracts it.
func (l *limits) takeCached(needBytes uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if needBytes > l.cachedBytes || time.Now().After(l.until) {
		return false
	}
	l.cachedBytes -= needBytes
	return true
}
