package peer

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendRightsAlone sends a packet of descriptors without a byte; the functions of
// x/sys would add one.
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
