package cudaipc

import "unsafe"

// HostPtr is the address of plain host memory, for copies from and to it. The
// memory must be mapped outside Go's heap, and stay until the copies are done.
func HostPtr(b []byte) Ptr { return Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
