package vllm_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/python"
	"github.com/omnibus-runtime/omnibus/codec/vllm"
)

func zeros(n int) codec.Tensor {
	return codec.Tensor{DType: codec.DTypeFloat32, Shape: []int{n}, Data: make([]byte, 4*n)}
}

// vectorValues are the values of testdata/vectors.txt.
var vectorValues = map[string]any{
	"array":               python.NDArray{DType: "<i4", Shape: []int{3}, Data: []byte("\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00")},
	"tensor":              codec.Tensor{DType: codec.DTypeFloat32, Shape: []int{2, 2}, Data: []byte("\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40")},
	"tensor of 256 bytes": zeros(64),
	"tensor of 252 bytes": zeros(63),
	"array of 256 bytes":  python.NDArray{DType: "<f4", Shape: []int{64}, Data: make([]byte, 256)},
	"array scalar":        python.NDArray{DType: "<f8", Shape: []int{}, Data: []byte("\x00\x00\x00\x00\x00\x00\x08\x40")},
	"tensor scalar":       codec.Tensor{DType: codec.DTypeInt64, Shape: []int{}, Data: []byte("\xc0\x07\x00\x00\x00\x00\x00\x00")},
	"empty tensor":        codec.Tensor{DType: codec.DTypeFloat32, Shape: []int{0}, Data: []byte{}},
	"two large":           python.Dict{{Key: "a", Value: zeros(64)}, {Key: "b", Value: python.NDArray{DType: "<i8", Shape: []int{32}, Data: make([]byte, 256)}}},
	"slice":               python.Slice{Start: new(1), Stop: new(2), Step: new(3)},
	"half slice":          python.Slice{Stop: new(2)},
	"bfloat16":            codec.Tensor{DType: codec.DTypeBFloat16, Shape: []int{2}, Data: []byte("\x80\x3f\x00\x40")},
	"bool":                codec.Tensor{DType: codec.DTypeBool, Shape: []int{1}, Data: []byte{1}},
	"nothing":             nil,
}

// TestVectors compares with buffers that vLLM itself made.
func TestVectors(t *testing.T) {
	vectors := codectest.Vectors(t, "testdata/vectors.txt")
	if len(vectors) != len(vectorValues) {
		t.Errorf("%d vectors, %d values", len(vectors), len(vectorValues))
	}
	for name, value := range vectorValues {
		buffers, err := vllm.Encode(value, vllm.Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(vectors[name], buffers); diff != "" {
			t.Errorf("%s (-Python +Go):\n%s", name, diff)
		}
		decoded, err := decodeLike(buffers, value)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(codectest.Arrived(value), decoded); diff != "" {
			t.Errorf("%s: changed (-want +got):\n%s", name, diff)
		}
	}
}
