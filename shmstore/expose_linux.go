package shmstore

import "golang.org/x/sys/unix"

// duplicate makes a second descriptor, which no child inherits.
func duplicate(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}
