//go:build cuda && linux

package cuda

import "github.com/omnibus-runtime/omnibus/cudaipc"

// openArgs lays out a handle for cuIpcOpenMemHandle_v2: see byPointer.
func openArgs(dst []uintptr, result uintptr, _ *cudaipc.Handle, handle, flags uintptr) []uintptr {
	return byPointer(dst, result, handle, flags)
}
