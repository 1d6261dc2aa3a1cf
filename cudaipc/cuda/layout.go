package cuda

import (
	"encoding/binary"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// One call has a structure among its arguments, passed by value:
//
//	cuIpcOpenMemHandle_v2(pointer, 64 bytes, unsigned int)
//
// Its layout depends on the processor. Both layouts are compiled on both, so that tests check them
// everywhere; openArgs uses the right one.

// onStack is the layout of System V on amd64. A structure of more than 16 bytes lies on the stack,
// and uses no register: the next argument goes into the next register. Six registers precede the
// stack; those without an argument are filled with zero.
func onStack(dst []uintptr, result uintptr, h *cudaipc.Handle, flags uintptr) []uintptr {
	dst = append(dst, result, flags, 0, 0, 0, 0)
	for i := 0; i < len(h); i += 8 {
		dst = append(dst, uintptr(binary.LittleEndian.Uint64(h[i:])))
	}
	return dst
}

// byPointer is the layout of the arm64 procedure call standard. A structure of more than 16 bytes
// is copied by the caller, and the address of the copy is passed.
func byPointer(dst []uintptr, result, handle, flags uintptr) []uintptr {
	return append(dst, result, handle, flags)
}
