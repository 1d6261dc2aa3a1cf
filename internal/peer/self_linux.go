package peer

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
	_ = unix.SetNonblock(fd, true) // see watch
	return fd, nil
}

// Duplicate returns another descriptor of the same file, which is the caller's to
// close, and is not inherited.
func Duplicate(fd int) (int, error) {
	own, err := duplicate([]int{fd})
	if err != nil {
		return -1, err
	}
	return own[0], nil
}
