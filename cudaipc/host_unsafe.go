package cudaipc

import "unsafe"

// HostPtr returns the address of plain host memory, for copies. The memory must be mapped outside
// Go's heap, and stay mapped until the copies are done.
func HostPtr(b []byte) Ptr { return Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
