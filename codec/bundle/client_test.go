package bundle_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
)

// hostileBundle is a bundle of a hostile tree, whose tables are valid until they are damaged.
func hostileBundle(h *codectest.Hostile) []byte {
	const header, record, align = 32, 24, 64
	le := binary.LittleEndian
	tree, n := h.Tree()
	var table, data []byte
	ndims := make([]int, n)
	size := 0
	for i := range ndims {
		ndims[i] = h.IntN(4)
		size += record + 8*ndims[i]
	}
	end := header + size + len(tree)
	for _, ndim := range ndims {
		dtype := codec.DType(1 + h.IntN(int(codec.DTypeComplex128)))
		bytes, dims := dtype.Size(), []byte(nil)
		for range ndim {
			dim := h.IntN(4)
			bytes *= dim
			dims = le.AppendUint64(dims, uint64(dim)) //nolint:gosec // small
		}
		at := 0
		if bytes > 0 {
			at = (end + align - 1) / align * align
			data = append(data, make([]byte, at-end)...)
			for range bytes {
				data = append(data, byte(h.IntN(256)))
			}
			end = at + bytes
		}
		table = append(table, byte(dtype), byte(ndim), 0, 0, 0, 0, 0, 0)
		table = le.AppendUint64(table, uint64(at))    //nolint:gosec // small
		table = le.AppendUint64(table, uint64(bytes)) //nolint:gosec // small
		table = append(table, dims...)
	}
	out := append([]byte("OBDL\x01\x00\x00\x00\x00\x00\x00\x00"), byte(n), byte(n>>8), 0, 0)
	out = le.AppendUint64(out, uint64(len(table)))
	out = le.AppendUint64(out, uint64(len(tree)))
	for _, part := range [][]byte{table, tree, data} {
		out = append(out, part...)
	}
	return out
}

// TestAgainstClient: Go and Python refuse the same payloads, and decode the others to
// the same values.
func TestAgainstClient(t *testing.T) {
	h := codectest.NewHostile(2)
	payloads := make([][]byte, 8000)
	for i := range payloads {
		if payloads[i] = hostileBundle(h); h.IntN(3) == 0 {
			payloads[i] = h.Damage(payloads[i])
		}
	}
	decode := func(p []byte) (any, error) {
		b, err := bundle.Open(p)
		if err != nil {
			return nil, err
		}
		return b.DecodeInOrder()
	}
	codectest.AgainstClient(t, "bundle", payloads, decode, func(v any) string { return fmt.Sprintf("a %T", v) })
}
