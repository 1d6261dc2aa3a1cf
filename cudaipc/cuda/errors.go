//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// code is the result of a call: a CUresult.
type code int32

const (
	success         code = 0
	invalidValue    code = 1
	outOfMemory     code = 2
	deinitialized   code = 4
	noDevice        code = 100
	invalidDevice   code = 101
	invalidContext  code = 201
	mapFailed       code = 205
	operatingSystem code = 304
	invalidHandle   code = 400
	notReady        code = 600
	contextGone     code = 709
	notPermitted    code = 800
	notSupported    code = 801

	// missing is defined by this package: the library has no such function.
	missing code = -1
)

// meaning is a code's name and error.
type meaning struct {
	name string
	err  error
}

// errMissing has two kinds: the function belongs to a newer driver, and a caller that can do
// without it treats the device as one without the feature.
var errMissing = fmt.Errorf("%w: %w: it has no such function", cudaipc.ErrUnsupported, cudaipc.ErrDriverTooOld)

// meanings lists the codes with a definite error. All others are ErrUnsupported, after which
// callers use host memory.
var meanings = map[code]meaning{
	missing:       {"SYMBOL_MISSING", errMissing},
	invalidValue:  {"CUDA_ERROR_INVALID_VALUE", cudaipc.ErrInvalid},
	outOfMemory:   {"CUDA_ERROR_OUT_OF_MEMORY", cudaipc.ErrOutOfMemory},
	3:             {"CUDA_ERROR_NOT_INITIALIZED", cudaipc.ErrNoDriver},
	34:            {"CUDA_ERROR_STUB_LIBRARY", cudaipc.ErrNoDriver},
	46:            {"CUDA_ERROR_DEVICE_UNAVAILABLE", cudaipc.ErrNoDevice},
	noDevice:      {"CUDA_ERROR_NO_DEVICE", cudaipc.ErrNoDevice},
	invalidDevice: {"CUDA_ERROR_INVALID_DEVICE", cudaipc.ErrNoDevice},
	// This package sets contexts, so the code is no fault of a caller; calls with another meaning
	// map it themselves.
	invalidContext: {"CUDA_ERROR_INVALID_CONTEXT", cudaipc.ErrClosed},
	mapFailed:      {"CUDA_ERROR_MAP_FAILED", cudaipc.ErrOutOfMemory},
	208:            {"CUDA_ERROR_ALREADY_MAPPED", cudaipc.ErrInvalid},
	217:            {"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", cudaipc.ErrUnsupported},
	// The driver returns it when the kernel refuses: often in a container.
	operatingSystem: {"CUDA_ERROR_OPERATING_SYSTEM", cudaipc.ErrUnsupported},
	invalidHandle:   {"CUDA_ERROR_INVALID_HANDLE", cudaipc.ErrInvalid},
	401:             {"CUDA_ERROR_ILLEGAL_STATE", cudaipc.ErrInvalid},
	notReady:        {"CUDA_ERROR_NOT_READY", cudaipc.ErrInvalid},
	711:             {"CUDA_ERROR_TOO_MANY_PEERS", cudaipc.ErrUnsupported},
	712:             {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", cudaipc.ErrInvalid},
	713:             {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", cudaipc.ErrInvalid},
	notPermitted:    {"CUDA_ERROR_NOT_PERMITTED", cudaipc.ErrUnsupported},
	notSupported:    {"CUDA_ERROR_NOT_SUPPORTED", cudaipc.ErrUnsupported},
	802:             {"CUDA_ERROR_SYSTEM_NOT_READY", cudaipc.ErrUnsupported},
	803:             {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", cudaipc.ErrDriverTooOld},
	804:             {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", cudaipc.ErrDriverTooOld},

	// After these codes the context, or the whole process, is unusable.
	deinitialized: {"CUDA_ERROR_DEINITIALIZED", cudaipc.ErrSticky},
	214:           {"CUDA_ERROR_ECC_UNCORRECTABLE", cudaipc.ErrSticky},
	220:           {"CUDA_ERROR_NVLINK_UNCORRECTABLE", cudaipc.ErrSticky},
	226:           {"CUDA_ERROR_CONTAINED", cudaipc.ErrSticky},
	700:           {"CUDA_ERROR_ILLEGAL_ADDRESS", cudaipc.ErrSticky},
	702:           {"CUDA_ERROR_LAUNCH_TIMEOUT", cudaipc.ErrSticky},
	contextGone:   {"CUDA_ERROR_CONTEXT_IS_DESTROYED", cudaipc.ErrSticky},
	710:           {"CUDA_ERROR_ASSERT", cudaipc.ErrSticky},
	714:           {"CUDA_ERROR_HARDWARE_STACK_ERROR", cudaipc.ErrSticky},
	715:           {"CUDA_ERROR_ILLEGAL_INSTRUCTION", cudaipc.ErrSticky},
	716:           {"CUDA_ERROR_MISALIGNED_ADDRESS", cudaipc.ErrSticky},
	717:           {"CUDA_ERROR_INVALID_ADDRESS_SPACE", cudaipc.ErrSticky},
	718:           {"CUDA_ERROR_INVALID_PC", cudaipc.ErrSticky},
	719:           {"CUDA_ERROR_LAUNCH_FAILED", cudaipc.ErrSticky},
	721:           {"CUDA_ERROR_TENSOR_MEMORY_LEAK", cudaipc.ErrSticky},
	806:           {"CUDA_ERROR_MPS_RPC_FAILURE", cudaipc.ErrSticky},
	810:           {"CUDA_ERROR_MPS_CLIENT_TERMINATED", cudaipc.ErrSticky},
	911:           {"CUDA_ERROR_EXTERNAL_DEVICE", cudaipc.ErrSticky},
}

// failure returns the error of a call on a device; the zero UUID stands for none.
func (c *caller) failure(s symbol, got code, device cudaipc.UUID) *cudaipc.Error {
	m, known := meanings[got]
	if !known {
		m = meaning{c.errorName(got), cudaipc.ErrUnsupported}
	}
	return &cudaipc.Error{Call: s.String(), Code: int(got), Name: m.name, Device: device, Err: m.err}
}

// refusal returns the error of a call that is not made, because the driver is known to refuse it,
// or because it could do harm.
func refusal(s symbol, got code, device cudaipc.UUID, kind error, format string, args ...any) error {
	return &cudaipc.Error{
		Call: s.String(), Code: int(got), Name: meanings[got].name, Device: device,
		Err: fmt.Errorf("%w: %s", kind, fmt.Sprintf(format, args...)),
	}
}

// sticky reports whether the device is lost after a code.
func (c code) sticky() bool { return meanings[c].err == cudaipc.ErrSticky } //nolint:errorlint // the table's own value
