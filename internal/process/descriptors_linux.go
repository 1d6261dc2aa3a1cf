package process

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Self returns a pidfd of this process, for others to watch it by. It is the
// caller's to close.
func Self() (int, error) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return -1, fmt.Errorf("open a pidfd of this process: %w", err)
	}
	_ = unix.SetNonblock(fd, true) // see peer.Watch
	return fd, nil
}

// Duplicate returns another descriptor of the same file, which is the caller's to
// close, and is not inherited.
func Duplicate(fd int) (int, error) {
	own, err := DuplicateAll([]int{fd})
	if err != nil {
		return -1, err
	}
	return own[0], nil
}

// DuplicateAll returns descriptors of its own for the same files, all or none.
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

// CloseAll closes descriptors that came with a packet, or were to go with one. A socket
// would hold up the process that closes it last, for as long as its owner has told it to linger.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // most are no sockets
		unix.Close(fd)
	}
}
