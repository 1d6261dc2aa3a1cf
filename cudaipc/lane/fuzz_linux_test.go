package lane_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// FuzzOpen opens arbitrary payloads, in the process that sent the original and in another one: each
// is opened, or refused with a documented error. An opened tensor lies within the memory that the
// payload names.
func FuzzOpen(f *testing.F) {
	f.Add(uint8(0), uint16(0), uint64(0), uint8(0))
	for at := range uint16(288) { // each byte of header, place and records
		f.Add(uint8(at%4), at, uint64(1)<<(at%64), uint8(at%9))
	}
	from, to, payloads := fuzzBenches(f)
	f.Fuzz(func(t *testing.T, which uint8, at uint16, bits uint64, n uint8) {
		p := bytes.Clone(payloads[int(which)%len(payloads)])
		var change [8]byte
		binary.LittleEndian.PutUint64(change[:], bits)
		for i := range int(n) % (len(change) + 1) {
			p[(int(at)+i)%len(p)] ^= change[i]
		}
		for _, b := range []*bench{from, to} {
			m, err := b.lane.Open(t.Context(), p)
			var bad *codec.PayloadError
			switch {
			case err == nil:
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			case errors.As(err, &bad), errors.Is(err, lane.ErrForged), errors.Is(err, lane.ErrForeignDevice), errors.Is(err, lane.ErrNotPublished),
				errors.Is(err, cudaipc.ErrStaleHandle), errors.Is(err, cudaipc.ErrOwnHandle), errors.Is(err, cudaipc.ErrInvalid), errors.Is(err, cudaipc.ErrUnsupported):
			default:
				t.Errorf("%v is no documented error", err)
			}
			if err := b.dev.Err(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// fuzzBenches makes two lanes, and messages of the first one in every mode.
func fuzzBenches(f *testing.F) (from, to *bench, payloads [][]byte) {
	gpu := emul.Options{GranularityBytes: 1 << 16, Apart: true}
	dir := newDirectory(f)
	from, to = newBench(f, gpu, lane.Options{Directory: dir}), newBench(f, gpu, lane.Options{Directory: dir})
	src, _ := from.tensor(codec.DTypeUint8, 16, 16)
	strided := &lane.Tensor{DType: codec.DTypeUint8, Shape: []int{8, 16}, Strides: []int{32, 1}, Ptr: src.Ptr}
	for _, mode := range modes {
		h := from.mustSend(map[string]any{"x": src, "y": []any{strided, int64(1)}}, mode)
		from.sync(from.s)
		lease, err := from.store.Local().Take(h)
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(lease.Release)
		payloads = append(payloads, bytes.Clone(lease.Bytes()))
	}
	return from, to, payloads
}
