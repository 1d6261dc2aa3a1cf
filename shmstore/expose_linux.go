package shmstore

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// duplicate makes a second descriptor, which no child inherits.
func duplicate(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

// duplicateReadOnly makes a second descriptor of memory that lacks some of its pages, through which no process can add
// pages: they would count as this process's memory. Without /proc it is a plain duplicate.
func duplicateReadOnly(fd int) (int, error) {
	if own, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		return own, nil
	}
	return duplicate(fd)
}
