package peer

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendRightsAlone sends a packet that has descriptors and not one byte, which the
// functions for that would add.
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
