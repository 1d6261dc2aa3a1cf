package limits

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestFiles(t *testing.T) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		t.Fatal(err)
	}
	if n := Files(); n < 1 || n != int(min(r.Cur, maxFiles)) {
		t.Errorf("%d descriptors may be open, the limit is %d", n, r.Cur)
	}
}
