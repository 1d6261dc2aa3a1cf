package posix

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

// The first file of a store, in the byte order of the machine:
//
//	offset  size  field
//	     0     8  magic "OMNIBUSN"
//	     8     4  version
//	    12     4  places for readers; 0 while the store is being made
//	    16     8  process id of the creator, for messages
//	    24     8  identity of the store
//	    32     8  what numbers in metadata begin at
//	    40     4  slots
//	    44     4  CRC-32 of what is before
//	    64     8  written to when a value was put for which somebody waits
const (
	version     = 1
	recordBytes = 48
	bellAt      = 64
	headBytes   = 72

	maxSlots = 1 << 28 // as in package shmstore
)

var magic = [8]byte{'O', 'M', 'N', 'I', 'B', 'U', 'S', 'N'}

// The bytes of the first file that are locked.
const (
	lockCreator = 0
	lockSlots   = pageBytes
)

// errNone says that there is no store of this name, or that its creator is gone.
var errNone = fmt.Errorf("%w: there is no store of this name", connector.ErrNotFound)

// record is what the first file says.
type record struct {
	readers uint32
	pid     uint64
	store   uint64
	base    uint64
	slots   uint32
}

func (r record) encode() []byte {
	b := make([]byte, recordBytes)
	copy(b, magic[:])
	binary.NativeEndian.PutUint32(b[8:], version)
	binary.NativeEndian.PutUint32(b[12:], r.readers)
	binary.NativeEndian.PutUint64(b[16:], r.pid)
	binary.NativeEndian.PutUint64(b[24:], r.store)
	binary.NativeEndian.PutUint64(b[32:], r.base)
	binary.NativeEndian.PutUint32(b[40:], r.slots)
	binary.NativeEndian.PutUint32(b[44:], crc32.ChecksumIEEE(b[:44]))
	return b
}

// number is what metadata call a value.
func (r record) number(generation uint64) uint64 {
	if n := r.base + generation; n != 0 {
		return n
	}
	return r.base // no generation is 0
}

// head is the first file of a store, open, with the locks that it stands for.
type head struct {
	fd    int
	inode uint64
}

func (h head) close() { _ = unix.Close(h.fd) }

// read returns the record. One that is not complete, or is being written, is errNone.
func (h head) read() (record, error) {
	b := make([]byte, recordBytes)
	n, err := unix.Pread(h.fd, b, 0)
	if err != nil {
		return record{}, fmt.Errorf("read the store: %w", err)
	}
	if n >= 12 && [8]byte(b) == magic {
		if v := binary.NativeEndian.Uint32(b[8:]); v != version {
			return record{}, fmt.Errorf("%w: a store of version %d, this is %d: use the same release on both sides", connector.ErrUnavailable, v, version)
		}
	}
	r := record{
		readers: binary.NativeEndian.Uint32(b[12:]),
		pid:     binary.NativeEndian.Uint64(b[16:]),
		store:   binary.NativeEndian.Uint64(b[24:]),
		base:    binary.NativeEndian.Uint64(b[32:]),
		slots:   binary.NativeEndian.Uint32(b[40:]),
	}
	if n != recordBytes || !bytes.Equal(r.encode(), b) || r.readers == 0 || r.readers > MaxReaders || r.slots == 0 || r.slots > maxSlots {
		return r, errNone
	}
	return r, nil
}

// write writes the record.
func (h head) write(r record) error {
	if _, err := unix.Pwrite(h.fd, r.encode(), 0); err != nil {
		return fmt.Errorf("write the store's first file: %w", full(err))
	}
	return nil
}

// ring has those look again who wait for a value.
func (h head) ring(count uint64) {
	_, _ = unix.Pwrite(h.fd, binary.NativeEndian.AppendUint64(nil, count), bellAt) // the pages are there
}

func (h head) lock(kind int16, command int, at int64) (unix.Flock_t, error) {
	l := unix.Flock_t{Type: kind, Whence: unix.SEEK_SET, Start: at, Len: 1}
	err := unix.FcntlFlock(uintptr(h.fd), command, &l)
	return l, err
}

// tryLock locks a byte, if nobody has it.
func (h head) tryLock(at int64) (bool, error) {
	_, err := h.lock(unix.F_WRLCK, unix.F_OFD_SETLK, at)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock the store: %w", full(err))
	}
	return true, nil
}

func (h head) unlock(at int64) { _, _ = h.lock(unix.F_UNLCK, unix.F_OFD_SETLK, at) }

// held reports whether another has locked a byte. It locks nothing.
func (h head) held(at int64) bool {
	l, err := h.lock(unix.F_WRLCK, unix.F_OFD_GETLK, at)
	return err == nil && l.Type != unix.F_UNLCK
}

// openHead opens the first file of a store. That there is none is fs.ErrNotExist.
func (f files) openHead() (head, error) {
	fd, err := f.open(f.head, unix.O_RDWR)
	if err != nil {
		return head{}, err
	}
	return headOf(fd)
}

func headOf(fd int) (head, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return head{}, fmt.Errorf("stat: %w", err)
	}
	return head{fd, st.Ino}, nil
}

// current reports whether the name is this file's.
func (f files) current(h head) bool {
	var st unix.Stat_t
	return unix.Fstatat(f.fd, f.head, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Ino == h.inode
}

// newHead makes a first file, locked before it has a name, so that nobody takes it for
// a dead process's. If the name is taken it is fs.ErrExist.
func (f files) newHead() (head, error) {
	fd, err := unix.Openat(f.fd, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, ownerOnly)
	if err != nil {
		return head{}, fmt.Errorf("make a file in %s: %w", f.path, full(err))
	}
	h, err := headOf(fd)
	if err != nil {
		return head{}, err
	}
	err = headroom.Allocate(fd, headBytes)
	if err == nil {
		err = h.write(record{pid: uint64(os.Getpid())}) //nolint:gosec // a process id is positive
	}
	if err == nil {
		_, err = h.tryLock(lockCreator) // nobody else has the file
	}
	if err == nil {
		err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), f.fd, f.head, unix.AT_SYMLINK_FOLLOW)
	}
	if err != nil {
		h.close()
		return head{}, fmt.Errorf("make %s: %w", f.head, full(err))
	}
	faultpoint.Hit("posix-head-linked")
	return h, nil
}

// claim makes the first file of a new store, and removes what a dead creator left.
func (f files) claim() (head, error) {
	const most = 16 // others that create and end stores of this name
	for range most {
		h, err := f.newHead()
		if err == nil {
			return h, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return head{}, err
		}
		if err := f.bury(); err != nil {
			return head{}, err
		}
	}
	return head{}, fmt.Errorf("%w: stores of this name come and go", connector.ErrBusy)
}

// bury removes what a dead creator left. Its lock is what allows that: while it is held
// here, and the name is the file's, nobody else creates or removes anything.
func (f files) bury() error {
	dead, err := f.openHead()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dead.close()
	free, err := dead.tryLock(lockCreator)
	if err != nil {
		return err
	}
	if !free {
		r, _ := dead.read()
		return fmt.Errorf("%w: process %d has a store of this name, and puts into it alone: take another name here, or end it", connector.ErrBusy, r.pid)
	}
	if !f.current(dead) {
		return nil // somebody else has buried it
	}
	faultpoint.Hit("posix-dead-locked")
	if err := f.remove(); err != nil {
		return err
	}
	if err := unix.Unlinkat(f.fd, f.head, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", f.head, err)
	}
	faultpoint.Hit("posix-buried")
	return nil
}
