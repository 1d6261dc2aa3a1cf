package messages

import "fmt"

// MalformedError names the field of a delivery that is invalid in a message between
// processes, and the reason.
type MalformedError struct {
	Message string // for example "Delivery"
	Field   string // for example "key"
	Reason  string // the fault, and the expected value
}

// Error names the field and the reason.
func (e *MalformedError) Error() string {
	return fmt.Sprintf("malformed message: %s.%s: %s", e.Message, e.Field, e.Reason)
}

// malformed is the error for one field of a Delivery.
func malformed(field, format string, args ...any) error {
	return &MalformedError{Message: "Delivery", Field: field, Reason: fmt.Sprintf(format, args...)}
}
