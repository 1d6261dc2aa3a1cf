package emul

import (
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// result is a code of CUDA with its name.
type result struct {
	code int
	name string
}

// The results of CUDA in the same situations.
var (
	invalidValue      = result{1, "CUDA_ERROR_INVALID_VALUE"}
	outOfMemory       = result{2, "CUDA_ERROR_OUT_OF_MEMORY"}
	deinitialized     = result{4, "CUDA_ERROR_DEINITIALIZED"}
	noDevice          = result{100, "CUDA_ERROR_NO_DEVICE"}
	invalidDevice     = result{101, "CUDA_ERROR_INVALID_DEVICE"}
	invalidContext    = result{201, "CUDA_ERROR_INVALID_CONTEXT"}
	mapFailed         = result{205, "CUDA_ERROR_MAP_FAILED"}
	invalidHandle     = result{400, "CUDA_ERROR_INVALID_HANDLE"}
	illegalAddress    = result{700, "CUDA_ERROR_ILLEGAL_ADDRESS"}
	contextDestroyed  = result{709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"}
	alreadyRegistered = result{712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"}
	launchFailed      = result{719, "CUDA_ERROR_LAUNCH_FAILED"}
	notSupported      = result{801, "CUDA_ERROR_NOT_SUPPORTED"}
)

// with returns the error of a call. The reason is part of its text.
func (r result) with(call string, device cudaipc.UUID, kind error, reason string, args ...any) *cudaipc.Error {
	err := kind
	if reason != "" {
		err = fmt.Errorf("%w: "+reason, append([]any{kind}, args...)...)
	}
	return &cudaipc.Error{Call: call, Code: r.code, Name: r.name, Device: device, Err: err}
}

// repeatError returns the error of calls after a failure of the device: the first one, under the
// name of the call.
func repeatError(call string, cause *cudaipc.Error) error {
	err := *cause
	if err.Call != call {
		err.Err = fmt.Errorf("%w (in %s before)", cause.Err, cause.Call)
	}
	err.Call = call
	return &err
}

// sticky turns an injected error into the error that ends a device.
func sticky(call string, device cudaipc.UUID, err error) *cudaipc.Error {
	r := launchFailed
	if own := (*cudaipc.Error)(nil); errors.As(err, &own) {
		r = result{own.Code, own.Name}
	}
	return r.with(call, device, cudaipc.ErrSticky, "%w", err)
}
