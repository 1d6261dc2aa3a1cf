package process

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Self returns a pidfd of this process, with which other processes watch it. The
// caller closes it.
func Self() (int, error) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return -1, fmt.Errorf("open a pidfd of this process: %w", err)
	}
	_ = unix.SetNonblock(fd, true) // see peer.Watch
	return fd, nil
}

// Duplicate returns another descriptor of the same file, with FD_CLOEXEC. The caller
// closes it.
func Duplicate(fd int) (int, error) {
	own, err := DuplicateAll([]int{fd})
	if err != nil {
		return -1, err
	}
	return own[0], nil
}

// DuplicateAll returns duplicates of all descriptors. After an error it leaves none.
func DuplicateAll(fds []int) ([]int, error) {
	var own []int
	for _, fd := range fds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			CloseAll(own)
			return nil, fmt.Errorf("duplicate descriptor %d: %w", fd, err)
		}
		own = append(own, dup)
	}
	return own, nil
}

// CloseAll closes descriptors of packets. It disables SO_LINGER first: otherwise the close of a
// socket could block for the time that another process has set.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // most are no sockets
		unix.Close(fd)
	}
}
