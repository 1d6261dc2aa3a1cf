package headroom

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAllocateInterrupted: periodic signals do not prevent an allocation on a kernel that
// starts a call anew after each signal.
func TestAllocateInterrupted(t *testing.T) {
	const sizeBytes = 1<<30 + 5
	var end int64
	interrupted := false
	err := allocate(sizeBytes, func(at, n int64) error {
		if interrupted = !interrupted; interrupted || n > 8<<20 { // more does not fit between two signals
			return unix.EINTR
		}
		if at != end || n < 1 {
			t.Errorf("%d bytes at %d, with those before %d allocated", n, at, end)
		}
		end = at + n
		return nil
	})
	if err != nil || end != sizeBytes {
		t.Errorf("%d bytes of %d are allocated: %v", end, sizeBytes, err)
	}
}

func TestAllocateGivesUp(t *testing.T) {
	for _, want := range []error{unix.EINTR, unix.ENOSPC} {
		calls := 0
		err := allocate(1, func(int64, int64) error {
			calls++
			return want
		})
		if !errors.Is(err, want) || (calls == 1) != (want != unix.EINTR) {
			t.Errorf("error %v after %d calls, want %v", err, calls, want)
		}
	}
}

func TestAllocate(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	const sizeBytes = pieceBytes + 1
	if err := Allocate(int(f.Fd()), sizeBytes); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != sizeBytes || st.Blocks*512 < sizeBytes {
		t.Errorf("the file has %d bytes in %d blocks, want %d", st.Size, st.Blocks, sizeBytes)
	}
}
