package cuda

import (
	"encoding/binary"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// The one call with a structure among its arguments, and that by value, is
//
//	cuIpcOpenMemHandle_v2(pointer, 64 bytes, unsigned int)
//
// and how it is made depends on the processor. Both ways are here for both, so
// that tests see them wherever they run; openArgs is the one in force.

// onStack is how System V has it on amd64. A structure of more than 16 bytes
// lies in the stack, and does not use up a register: what comes behind it
// still goes into the next one. Six registers come before the stack, so those
// without an argument are filled up.
func onStack(dst []uintptr, result uintptr, h *cudaipc.Handle, flags uintptr) []uintptr {
	dst = append(dst, result, flags, 0, 0, 0, 0)
	for i := 0; i < len(h); i += 8 {
		dst = append(dst, uintptr(binary.LittleEndian.Uint64(h[i:])))
	}
	return dst
}

// byPointer is how the procedure call standard of arm64 has it. A structure of
// more than 16 bytes is copied by the caller, and the address of the copy
// takes its place.
func byPointer(dst []uintptr, result, handle, flags uintptr) []uintptr {
	return append(dst, result, handle, flags)
}
