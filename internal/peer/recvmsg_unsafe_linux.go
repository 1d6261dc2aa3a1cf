package peer

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// recvmsg receives a packet without waiting. The functions of x/sys ask who sent it as well,
// which takes memory for each packet, and says nothing on a connection.
func recvmsg(fd uintptr, buf, control []byte) (n, controlLen, flags int, err error) {
	iov := unix.Iovec{Base: unsafe.SliceData(buf)}
	iov.SetLen(len(buf))
	h := unix.Msghdr{Iov: &iov, Control: unsafe.SliceData(control)}
	h.SetIovlen(1)
	h.SetControllen(len(control))
	r, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&h)), unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if errno != 0 {
		return 0, 0, 0, errno
	}
	return int(r), int(h.Controllen), int(h.Flags), nil
}
