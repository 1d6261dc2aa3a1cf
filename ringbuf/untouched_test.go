//go:build unix

package ringbuf_test

import (
	"errors"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// readOnly returns memory in which every write faults, as a panic here.
func readOnly(t *testing.T, sizeBytes int) []byte {
	t.Helper()
	buf, err := syscall.Mmap(-1, 0, sizeBytes, syscall.PROT_READ, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	before := debug.SetPanicOnFault(true)
	t.Cleanup(func() {
		debug.SetPanicOnFault(before)
		_ = syscall.Munmap(buf)
	})
	return buf
}

// TestUntouchedBuffer keeps the books of memory that this process cannot write.
func TestUntouchedBuffer(t *testing.T) {
	const sizeBytes, payload = 1 << 16, 1000
	for _, strict := range []bool{false, true} {
		r, err := ringbuf.New(readOnly(t, sizeBytes), ringbuf.Options{NoHeaders: true, StrictFIFO: strict})
		if err != nil {
			t.Fatal(err)
		}
		for round := range 3 {
			var chunks []ringbuf.Chunk
			for {
				c, err := r.Allocate(payload+len(chunks), 0)
				if errors.Is(err, ringbuf.ErrNoRoom) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if b, err := r.Bytes(c); err != nil || len(b) != payload+len(chunks) || b[len(b)-1] != 0 {
					t.Fatalf("bytes of %v: %d of them, %v", c, len(b), err)
				}
				chunks = append(chunks, c)
			}
			mustBeSound(t, r)
			release(t, r, chunks[round], chunks[len(chunks)/2])
			r.Reclaim(func(c ringbuf.Chunk, _ []byte) bool { return c.ID%2 == 0 || strict }, 0)
			mustBeSound(t, r)
			r.Clear()
			mustBeSound(t, r)
		}
		if s := r.Stats(); s.FreeBytes != sizeBytes || s.LargestGapBytes != sizeBytes {
			t.Errorf("after Clear: %+v, want all %d bytes free", s, sizeBytes)
		}
	}
}
