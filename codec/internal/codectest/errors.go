package codectest

import (
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
)

// CheckError fails the test unless err is an error with which a serializer may refuse
// a payload. As, if not nil, points to the type that err must also have.
func CheckError(t testing.TB, err error, as any) {
	t.Helper()
	typed := errors.Is(err, codec.ErrMalformed) || errors.Is(err, codec.ErrLimit) || errors.Is(err, codec.ErrMismatch)
	if !typed || as != nil && !errors.As(err, as) {
		t.Fatalf("untyped error %v", err)
	}
}
