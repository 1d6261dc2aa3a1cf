package shelf

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// Describe makes an open file description of its own for a shelf's descriptor, which
// belongs to whoever gets it. It fails where there is no /proc.
func Describe(fd int) (int, error) {
	own, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a shelf again: %w", err)
	}
	return own, nil
}

func lockByte(fd int, at uint64) bool { return setLock(fd, unix.F_WRLCK, at) }

func shareByte(fd int, at uint64) bool { return setLock(fd, unix.F_RDLCK, at) }

func unlockByte(fd int, at uint64) { setLock(fd, unix.F_UNLCK, at) }

// setLock reports whether it could. The kernel may have no memory for a lock, which is
// as if somebody had it; to give one up may take some, too, and then it stays.
func setLock(fd int, kind int16, at uint64) bool {
	for {
		err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: int64(at), Len: 1})
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

// lockedElsewhere reports whether another description has the lock, or may have it.
func lockedElsewhere(fd int, at uint64) bool {
	kind, err := lockElsewhere(fd, at)
	return err != nil || kind != unix.F_UNLCK
}

// sharedElsewhere reports whether others have the lock, and share it.
func sharedElsewhere(fd int, at uint64) bool {
	kind, err := lockElsewhere(fd, at)
	return err == nil && kind == unix.F_RDLCK
}

// lockElsewhere is how another description has the lock.
func lockElsewhere(fd int, at uint64) (kind int16, err error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(at), Len: 1}
	err = unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &lock)
	return lock.Type, err
}

func closeDescriptor(fd int) { _ = unix.Close(fd) } // nothing was written
