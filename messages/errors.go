package messages

import (
	"errors"
	"fmt"
)

// ErrMalformed reports a part of a delivery that no message between processes
// takes. The error behind it is a [*MalformedError].
var ErrMalformed = errors.New("malformed message")

// MalformedError says which field of a message is wrong and how.
// errors.Is(err, ErrMalformed) holds.
type MalformedError struct {
	Message string // for example "Delivery"
	Field   string // for example "key"
	Reason  string // what is wrong and what would be right
}

// Error names the field and the reason.
func (e *MalformedError) Error() string {
	return fmt.Sprintf("%v: %s.%s: %s", ErrMalformed, e.Message, e.Field, e.Reason)
}

// Unwrap returns ErrMalformed.
func (e *MalformedError) Unwrap() error { return ErrMalformed }

// malformed is the error for one field of a Delivery.
func malformed(field, format string, args ...any) error {
	return &MalformedError{Message: "Delivery", Field: field, Reason: fmt.Sprintf(format, args...)}
}
