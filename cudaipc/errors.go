package cudaipc

import (
	"errors"
	"fmt"
)

// The errors of this package. Test with errors.Is; [*Error] has the driver's own code where there
// is one.
var (
	// ErrNotBuilt reports a program that was built without the backend.
	ErrNotBuilt = errors.New("built without CUDA")
	// ErrNoDriver reports a machine without the driver's library.
	ErrNoDriver = errors.New("no CUDA driver")
	// ErrDriverTooOld reports a driver that lacks a function which the lane needs.
	ErrDriverTooOld = errors.New("CUDA driver is too old")
	// ErrNoDevice reports a machine without a GPU, or without the requested one.
	ErrNoDevice = errors.New("no such GPU")
	// ErrUnsupported reports an operation that this device, or the container around it, does not
	// offer.
	ErrUnsupported = errors.New("not supported by this GPU")
	// ErrInvalid reports an invalid argument.
	ErrInvalid = errors.New("invalid argument")
	// ErrOwnHandle reports a handle of this process: use the address.
	ErrOwnHandle = errors.New("handle of this process")
	// ErrStaleHandle reports a handle or a descriptor of memory that was freed, or that never
	// existed.
	ErrStaleHandle = errors.New("stale GPU handle")
	// ErrOutOfMemory reports that the GPU has no memory left.
	ErrOutOfMemory = errors.New("out of GPU memory")
	// ErrSticky reports a device that has failed for good: no operation on it works in this process
	// any more.
	ErrSticky = errors.New("GPU has failed")
	// ErrClosed reports the use of a closed driver, device or object.
	ErrClosed = errors.New("closed")
)

// Error is a failed call of the driver.
type Error struct {
	Call   string // such as "cuMemCreate"
	Code   int    // the driver's
	Name   string // such as "CUDA_ERROR_OUT_OF_MEMORY"
	Device UUID   // zero for a call without a device
	Err    error  // one of the errors of this package
}

// Error implements error.
func (e *Error) Error() string {
	where := ""
	if e.Device != (UUID{}) {
		where = " on " + e.Device.String()
	}
	return fmt.Sprintf("%s%s: %v (%s, %d)", e.Call, where, e.Err, e.Name, e.Code)
}

// Unwrap returns the error of this package.
func (e *Error) Unwrap() error { return e.Err }
