package kv

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
)

// FieldError reports a field of a frame that cannot be read, or a part of a
// [Payload] that cannot be written. It wraps [codec.ErrMalformed],
// [codec.ErrLimit] or [codec.ErrMismatch] in decoding; in encoding
// [codec.ErrLimit], [codec.ErrType] or a [*codec.ShapeError].
type FieldError struct {
	// Field is the place in the frame: "header_len", "header", or a path in
	// the header, such as "td[3].o".
	Field  string
	Reason string // or empty, if Err says it all
	Err    error
}

func (e *FieldError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("codec: %s: %s: %v", name, e.Field, e.Err)
	}
	return fmt.Sprintf("codec: %s: %s: %v: %s", name, e.Field, e.Err, e.Reason)
}

// Unwrap returns the cause.
func (e *FieldError) Unwrap() error { return e.Err }

func malformed(field, format string, args ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(format, args...), Err: codec.ErrMalformed}
}

func beyondLimit(field, format string, args ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(format, args...), Err: codec.ErrLimit}
}
