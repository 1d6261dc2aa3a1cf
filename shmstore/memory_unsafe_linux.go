package shmstore

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// replaceByZeroes puts fresh anonymous memory in the place of a mapping. If
// the kernel cannot do that, the mapping stays: a leak is better than a fault.
func replaceByZeroes(b []byte) {
	_, _ = unix.MmapPtr(-1, 0, unsafe.Pointer(&b[0]), uintptr(len(b)),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED|unix.MAP_NORESERVE)
}
