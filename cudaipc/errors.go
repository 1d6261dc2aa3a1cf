package cudaipc

import (
	"errors"
	"fmt"
)

// What a caller may be told. Test with errors.Is; [*Error] has the driver's own
// number where there is one.
var (
	// ErrNotBuilt reports a program that was built without the backend.
	ErrNotBuilt = errors.New("built without CUDA")
	// ErrNoDriver reports a machine without the driver's library.
	ErrNoDriver = errors.New("no CUDA driver")
	// ErrDriverTooOld reports a driver that lacks something the lane needs.
	ErrDriverTooOld = errors.New("CUDA driver is too old")
	// ErrNoDevice reports a machine without a GPU, or without the one that was
	// asked for.
	ErrNoDevice = errors.New("no such GPU")
	// ErrUnsupported reports what this device, or the container around it, does
	// not offer.
	ErrUnsupported = errors.New("not supported by this GPU")
	// ErrInvalid reports an argument that makes no sense.
	ErrInvalid = errors.New("invalid argument")
	// ErrOwnHandle reports a handle of this very process: use the address.
	ErrOwnHandle = errors.New("handle of this process")
	// ErrStaleHandle reports a handle or a descriptor of memory that is gone, or
	// that never was any.
	ErrStaleHandle = errors.New("stale GPU handle")
	// ErrOutOfMemory reports that the GPU has no memory left.
	ErrOutOfMemory = errors.New("out of GPU memory")
	// ErrSticky reports a device that has failed for good: nothing on it works in
	// this process any more.
	ErrSticky = errors.New("GPU has failed")
	// ErrClosed reports the use of something that was closed.
	ErrClosed = errors.New("closed")
)

// Error is a call of the driver that failed.
type Error struct {
	Call   string // such as "cuMemCreate"
	Code   int    // the driver's
	Name   string // such as "CUDA_ERROR_OUT_OF_MEMORY"
	Device UUID   // zero for a call that is about none
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
