package codec

import (
	"errors"
	"fmt"
	"strings"
)

// What can go wrong. Every error of this package wraps one of these.
var (
	// ErrUnknown: no serializer of that name or ID. See [UnknownError].
	ErrUnknown = errors.New("unknown serializer")
	// ErrDuplicate: the name or ID is taken by another serializer.
	ErrDuplicate = errors.New("serializer already registered")
	// ErrReserved: the name is empty, or name or ID belong to another
	// serializer of this repository. See [Registry.Register].
	ErrReserved = errors.New("reserved for built-in serializers")

	// ErrType: the serializer does not handle that Go type. See [TypeError].
	ErrType = errors.New("unsupported Go type")
	// ErrSize: a buffer has not the size of what goes into it. See [SizeError].
	ErrSize = errors.New("wrong buffer size")

	// ErrMalformed: the bytes are not a payload. See [PayloadError].
	ErrMalformed = errors.New("malformed payload")
	// ErrLimit: the payload is deeper or has more values than is accepted.
	// See [PayloadError].
	ErrLimit = errors.New("payload exceeds a limit")
	// ErrMismatch: the payload is well formed, but does not fit the Go value
	// it is decoded into.
	ErrMismatch = errors.New("payload does not fit the target")

	// ErrShape: dtype, shape and data do not make a tensor. See [ShapeError].
	ErrShape = errors.New("invalid tensor")
	// ErrAlignment: the data begins at an address that the element type
	// forbids. See [AlignmentError].
	ErrAlignment = errors.New("misaligned tensor data")
	// ErrByteOrder: this host is big endian. Tensor data is little endian and
	// cannot be viewed in place.
	ErrByteOrder = errors.New("big-endian host")
)

// UnknownError reports a lookup that found nothing. It wraps [ErrUnknown].
type UnknownError struct {
	Name  string   // as asked for, or empty if the lookup was by ID
	ID    ID       // as asked for, if Name is empty
	Known []string // names of the registered serializers, in the order of their IDs
}

func (e *UnknownError) Error() string {
	what := fmt.Sprintf("ID %d", e.ID)
	if e.Name != "" {
		what = fmt.Sprintf("name %q", e.Name)
	}
	known := "none"
	if len(e.Known) > 0 {
		known = strings.Join(e.Known, ", ")
	}
	return fmt.Sprintf("codec: %v: %s; registered: %s; register it on both ends", ErrUnknown, what, known)
}

// Unwrap returns [ErrUnknown].
func (e *UnknownError) Unwrap() error { return ErrUnknown }

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
	// Path is where in the value, such as "outputs[0].embed". It is empty for
	// the value itself, and from serializers that do not keep track.
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

// ShapeError reports a dtype, a shape and data that do not go together. It
// wraps [ErrShape].
type ShapeError struct {
	DType  DType
	Shape  []int
	Reason string
}

func (e *ShapeError) Error() string {
	return fmt.Sprintf("codec: %v %v%v: %s", ErrShape, e.DType, e.Shape, e.Reason)
}

// Unwrap returns [ErrShape].
func (e *ShapeError) Unwrap() error { return ErrShape }

// DTypeError reports a view of a tensor as elements of another type. It
// wraps [ErrMismatch].
type DTypeError struct {
	Got  DType // of the tensor
	Want DType // of the elements asked for
}

func (e *DTypeError) Error() string {
	return fmt.Sprintf("codec: tensor: %v: elements are %v, not %v", ErrMismatch, e.Got, e.Want)
}

// Unwrap returns [ErrMismatch].
func (e *DTypeError) Unwrap() error { return ErrMismatch }

// AlignmentError reports tensor data at an address that is no multiple of
// what its element type needs. It wraps [ErrAlignment].
type AlignmentError struct {
	DType      DType
	AlignBytes int // what the element type needs
	OffBytes   int // how far the address is beyond a multiple of that
}

func (e *AlignmentError) Error() string {
	return fmt.Sprintf("codec: tensor: %v: %v needs %d bytes and is off by %d; place the payload at a multiple of %d, or Clone the tensor",
		ErrAlignment, e.DType, e.AlignBytes, e.OffBytes, dataAlignBytes)
}

// Unwrap returns [ErrAlignment].
func (e *AlignmentError) Unwrap() error { return ErrAlignment }
