package peer

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// System calls that do not block, on a descriptor that does not block either. Those of x/sys
// also read the address of a packet's sender, which allocates, and announce a possibly long
// call to the scheduler, which costs more than the call.

// recvmsg receives a packet.
func recvmsg(fd uintptr, buf, control []byte) (n, controlLen, flags int, err error) {
	iov := unix.Iovec{Base: unsafe.SliceData(buf)}
	iov.SetLen(len(buf))
	h := unix.Msghdr{Iov: &iov, Control: unsafe.SliceData(control)}
	h.SetIovlen(1)
	h.SetControllen(len(control))
	r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&h)), unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if errno != 0 {
		return 0, 0, 0, errno
	}
	return int(r), int(h.Controllen), int(h.Flags), nil
}

// sendmsg sends a packet of two parts.
func sendmsg(fd uintptr, head, packet, control []byte) error {
	iov := [2]unix.Iovec{{Base: unsafe.SliceData(head)}, {Base: unsafe.SliceData(packet)}}
	iov[0].SetLen(len(head))
	iov[1].SetLen(len(packet))
	h := unix.Msghdr{Iov: &iov[0]}
	h.SetIovlen(len(iov))
	if len(control) > 0 {
		h.Control = unsafe.SliceData(control)
		h.SetControllen(len(control))
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&h)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if errno != 0 {
		return errno
	}
	return nil
}
