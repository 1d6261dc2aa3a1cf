//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"encoding/binary"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// foreignHandle returns a handle of another process's allocation, in the fake's format: see
// testdata/fake/memory.c.
func (f *fake) foreignHandle(sizeBytes int64) (h cudaipc.Handle) {
	f.Helper()
	fd, err := unix.MemfdCreate("fake-allocation", unix.MFD_CLOEXEC)
	if err != nil {
		f.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "allocation")
	var st unix.Stat_t
	owner := exec.CommandContext(f.Context(), "cat")
	owner.ExtraFiles = []*os.File{file} // its descriptor 3
	in, err := owner.StdinPipe()
	if err == nil {
		err = file.Truncate(sizeBytes)
	}
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil {
		err = owner.Start()
	}
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = in.Close()
		_ = owner.Wait()
		_ = file.Close()
	})
	words := [8]uint64{0x6b61666c656b6166, uint64(owner.Process.Pid), 3, st.Ino, uint64(sizeBytes), 1, 1<<64 - 1}
	for i, factor := range []uint64{1, 3, 5, 7, 11, 13, 17} {
		words[7] ^= words[i] * factor
	}
	for i, w := range words {
		binary.NativeEndian.PutUint64(h[8*i:], w)
	}
	return h
}

// TestHandleOpenedTwice: a handle that is imported several times is opened once, and closed with
// the last Unimport, also if the call that waits for streams fails.
func TestHandleOpenedTwice(t *testing.T) {
	for _, fails := range []string{"", "cuEventRecord"} {
		f := newFake(t)
		dev := f.device()
		f.stream(dev) // Unimport waits for it
		h := f.foreignHandle(1 << 20)
		first, sizeBytes, err := dev.Import(h)
		if err != nil || sizeBytes != 1<<20 {
			t.Fatalf("%d bytes, %v", sizeBytes, err)
		}
		second, _, err := dev.Import(h)
		if err != nil || second != first || f.count("cuIpcOpenMemHandle_v2") != 1 {
			t.Fatalf("%#x and %#x, opened %d times: %v", first, second, f.count("cuIpcOpenMemHandle_v2"), err)
		}
		if err := dev.Unimport(first); err != nil || f.count("cuIpcCloseMemHandle") != 0 {
			t.Errorf("closed %d times with one left: %v", f.count("cuIpcCloseMemHandle"), err)
		}
		if fails != "" {
			f.inject(fails, 2, 1)
		}
		err = dev.Unimport(first)
		if (err != nil) != (fails != "") || f.count("cuIpcCloseMemHandle") != 1 {
			t.Errorf("%s fails: closed %d times: %v", fails, f.count("cuIpcCloseMemHandle"), err)
		}
		if err := dev.Unimport(first); err == nil {
			t.Error("an Unimport without an Import succeeded")
		}
	}
}
