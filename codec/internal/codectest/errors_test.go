package codectest_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
)

// failing is a test that is expected to fail.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Helper()               {}
func (f *failing) Fatalf(string, ...any) { f.failed = true }

func TestCheckError(t *testing.T) {
	payload := &codec.PayloadError{Err: codec.ErrLimit}
	for name, c := range map[string]struct {
		err   error
		as    any
		wrong bool
	}{
		"malformed":         {codec.ErrMalformed, nil, false},
		"wrapped":           {fmt.Errorf("a list: %w", codec.ErrMismatch), nil, false},
		"of the type":       {payload, new(*codec.PayloadError), false},
		"wrapped, of it":    {fmt.Errorf("a list: %w", payload), new(*codec.PayloadError), false},
		"none":              {nil, nil, true},
		"untyped":           {io.ErrUnexpectedEOF, nil, true},
		"of no type":        {codec.ErrLimit, new(*codec.PayloadError), true},
		"the type, no more": {&codec.PayloadError{Err: errors.New("else")}, new(*codec.PayloadError), true},
	} {
		f := &failing{TB: t}
		if codectest.CheckError(f, c.err, c.as); f.failed != c.wrong {
			t.Errorf("%s: failed %v", name, f.failed)
		}
	}
}

var kept []byte

func TestAllocatedBy(t *testing.T) {
	const size = 8 << 20
	n, err := codectest.AllocatedBy(func() error {
		kept = make([]byte, size)
		return io.EOF
	})
	if kept = nil; !errors.Is(err, io.EOF) || n < size || n > 2*size {
		t.Errorf("%d bytes, %v", n, err)
	}
}
