package codec

import (
	"errors"
	"slices"
	"testing"
)

// For all bytes, the decoder returns a valid chunk or one of its errors.
// The bytes are tried as they are, and with the size and the checksum put right,
// which leads past those to the range decoder.
func FuzzDecodeChunk(f *testing.F) {
	for _, channels := range []int{1, 2} {
		for _, step := range []float32{0, 5, 500} {
			coded := encode(f, exampleChunk(channels), step)
			f.Add(coded)
			f.Add(coded[:len(coded)*2/3])
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, src := range [][]byte{src, reseal(slices.Clone(src))} {
			checkDecode(t, src)
		}
	})
}

func checkDecode(t *testing.T, src []byte) {
	announced, err := ChunkShape(src)
	if err == nil && announced.Validate() != nil {
		t.Fatalf("ChunkShape let %+v through", announced)
	}
	// DecodeChunk must not write to the element after the chunk.
	const guard = 12345
	dst := make([]float32, announced.Coefficients()+1)
	dst[len(dst)-1] = guard
	shape, err := DecodeChunk(dst, src)
	if dst[len(dst)-1] != guard {
		t.Fatal("wrote beyond the coefficients of the chunk")
	}
	if err != nil {
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Fatalf("%v is not an error that DecodeChunk announces", err)
		}
		return
	}
	if shape != announced {
		t.Fatalf("decoded %+v, announced %+v", shape, announced)
	}
	coeffs := dst[:shape.Coefficients()]
	if err := checkFinite(coeffs); err != nil {
		t.Fatal(err)
	}
	if _, err := EncodeChunk(nil, coeffs, shape, 0); err != nil {
		t.Fatalf("the decoded chunk cannot be coded: %v", err)
	}
}
