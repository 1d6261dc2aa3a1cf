package codec

import (
	"errors"
	"fmt"
)

// The errors of this package. Every other error wraps one of these.
var (
	// ErrUnknown: no serializer of that name or ID.
	ErrUnknown = errors.New("unknown serializer")
	// ErrType: the serializer does not handle that Go type. See [TypeError].
	ErrType = errors.New("unsupported Go type")
	// ErrSize: a buffer has not the size of the value encoded into it. See [SizeError].
	ErrSize = errors.New("wrong buffer size")

	// ErrMalformed: the bytes are not a payload. See [PayloadError].
	ErrMalformed = errors.New("malformed payload")
	// ErrLimit: the payload is deeper or has more values than is accepted.
	// See [PayloadError].
	ErrLimit = errors.New("payload exceeds a limit")
	// ErrMismatch: the payload is well formed, but does not fit the Go value
	// it is decoded into.
	ErrMismatch = errors.New("payload does not fit the target")

	// ErrShape: dtype, shape and data do not make a tensor.
	ErrShape = errors.New("invalid tensor")
	// ErrAlignment: the data begins at an address that the element type
	// forbids.
	ErrAlignment = errors.New("misaligned tensor data")
	// ErrByteOrder: this host is big endian. Tensor data is little endian and
	// cannot be viewed in place.
	ErrByteOrder = errors.New("big-endian host")
)

// TypeError reports a Go value that a serializer cannot encode, or decode
// into. It wraps [ErrType].
type TypeError struct {
	Serializer string
	Type       string // the Go type given
	Want       string // the Go types that would do
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("codec: %s: %v %s; want %s", e.Serializer, ErrType, e.Type, e.Want)
}

// Unwrap returns [ErrType].
func (e *TypeError) Unwrap() error { return ErrType }

// SizeError reports a buffer that is too small or too large for the value
// encoded into it. It wraps [ErrSize].
type SizeError struct {
	Serializer string
	Got, Want  int // bytes
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("codec: %s: %v: %d bytes for a value of %d", e.Serializer, ErrSize, e.Got, e.Want)
}

// Unwrap returns [ErrSize].
func (e *SizeError) Unwrap() error { return ErrSize }

// PayloadError reports bytes that are not a payload, one beyond the limits,
// or one that does not fit its target. It wraps [ErrMalformed], [ErrLimit] or
// [ErrMismatch].
type PayloadError struct {
	Serializer string
	Offset     int // bytes from the start of the payload
	// Path is the position in the value, such as "outputs[0].embed". It is empty for
	// the value itself, and from serializers that do not track it.
	Path   string
	Reason string
	Err    error // ErrMalformed, ErrLimit or ErrMismatch
}

func (e *PayloadError) Error() string {
	where := fmt.Sprintf("byte %d", e.Offset)
	if e.Path != "" {
		where += ", " + e.Path
	}
	return fmt.Sprintf("codec: %s: %v: %s: %s", e.Serializer, e.Err, where, e.Reason)
}

// Unwrap returns [ErrMalformed], [ErrLimit] or [ErrMismatch].
func (e *PayloadError) Unwrap() error { return e.Err }
