package shmstore

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// duplicate makes a second descriptor, which no child inherits.
func duplicate(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

// duplicateReadOnly makes a second descriptor of memory that has not all its pages, through which no process can give it more: they
// would count as this one's. Where there is no /proc it is one like the first.
func duplicateReadOnly(fd int) (int, error) {
	if own, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		return own, nil
	}
	return duplicate(fd)
}
