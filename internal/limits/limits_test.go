package limits

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"
)

// TestExplain: an error says what to do about a limit, once, and is what it was.
func TestExplain(t *testing.T) {
	for cause, advice := range map[error]string{
		syscall.EMFILE: ": raise the limit of this process (ulimit -n)",
		syscall.EFBIG:  ": raise the limit of this process (ulimit -f)",
		syscall.ENOMEM: ": raise the limit of this process (ulimit -v), or free memory",
		io.EOF:         "",
	} {
		err := Explain(Explain(fmt.Errorf("open x: %w", cause)))
		if want := "open x: " + cause.Error() + advice; err.Error() != want || !errors.Is(err, cause) {
			t.Errorf("%q, want %q", err, want)
		}
	}
	if err := Explain(nil); err != nil {
		t.Errorf("advice for nothing: %v", err)
	}
}
