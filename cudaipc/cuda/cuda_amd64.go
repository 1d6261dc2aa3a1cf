//go:build cuda && linux

package cuda

import "github.com/omnibus-runtime/omnibus/cudaipc"

// openArgs lays out a handle for cuIpcOpenMemHandle_v2: see onStack.
func openArgs(dst []uintptr, result uintptr, h *cudaipc.Handle, _, flags uintptr) []uintptr {
	return onStack(dst, result, h, flags)
}
