package codectest

import (
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
)

// CheckError fails the test if err is none of the errors that a serializer may refuse
// a payload with. As, if not nil, points to the type that it must have as well.
func CheckError(t testing.TB, err error, as any) {
	t.Helper()
	typed := errors.Is(err, codec.ErrMalformed) || errors.Is(err, codec.ErrLimit) || errors.Is(err, codec.ErrMismatch)
	if !typed || as != nil && !errors.As(err, as) {
		t.Fatalf("untyped error %v", err)
	}
}
