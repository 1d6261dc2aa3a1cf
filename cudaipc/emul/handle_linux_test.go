package emul

import (
	"errors"
	"os"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// FuzzHandle: only bytes that encode makes are decoded, and no bytes open foreign memory.
func FuzzHandle(f *testing.F) {
	h := handleInfo{pid: uint32(os.Getpid()), fd: 1, bytes: int64(pageBytes), nonce: nonce{1}, device: UUID(0), namespace: pidNamespace()}
	good := h.encode()
	f.Add(good[:])
	for _, i := range []int{0, 7, 8, 11, 12, 15, 16, 23, 24, 39, 40, 55, 56, 63} {
		bad := good
		bad[i] ^= 0x80
		f.Add(bad[:])
	}
	driver, err := New(Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = driver.Close() })
	dev, err := driver.Open(cudaipc.UUID{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var raw cudaipc.Handle
		copy(raw[:], b)
		if h, ok := decodeHandle(raw); ok && h.encode() != raw {
			t.Errorf("%x was read as %+v", raw, h)
		}
		base, _, err := dev.Import(raw)
		if base != 0 || !errors.Is(err, cudaipc.ErrStaleHandle) && !errors.Is(err, cudaipc.ErrUnsupported) {
			t.Errorf("Import(%x) = %#x, %v", raw, base, err)
		}
		if err := dev.Err(); err != nil {
			t.Fatal(err)
		}
	})
}
