package shmstore

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// sendRightsAlone sends a message that has descriptors and no bytes. The functions of package unix
// would add a byte.
func sendRightsAlone(socket uintptr, fds ...int) error {
	rights := unix.UnixRights(fds...)
	m := unix.Msghdr{Control: &rights[0]}
	m.SetControllen(len(rights))
	_, _, errno := unix.Syscall(unix.SYS_SENDMSG, socket, uintptr(unsafe.Pointer(&m)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
