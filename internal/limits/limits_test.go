package limits

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
)

// TestExplain: an error gets the advice for its limit once, and wraps its cause.
func TestExplain(t *testing.T) {
	files := fmt.Sprintf(": process %d may have %d descriptors open", os.Getpid(), Files())
	for cause, advice := range map[error]string{
		syscall.EMFILE: files + ": raise the limit of this process (ulimit -n, or LimitNOFILE= in a systemd unit)",
		syscall.ENFILE: ": raise the limit of this machine (fs.file-max)",
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
		t.Errorf("advice for an error without a limit: %v", err)
	}
}
