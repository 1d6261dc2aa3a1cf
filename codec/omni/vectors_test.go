package omni_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/omni"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

// vectorValues are the values of testdata/vectors.txt.
var vectorValues = map[string]any{
	"tensor":       codec.Tensor{DType: codec.DTypeFloat32, Shape: []int{2, 2}, Data: []byte("\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40")},
	"array":        python.NDArray{DType: "<i8", Shape: []int{3}, Data: []byte("\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00")},
	"map":          map[string]any{"list": []any{int64(1), int64(2), int64(3)}, "key": "value"},
	"small":        map[string]any{"small": "data"},
	"large":        map[string]any{"large": strings.Repeat("x", 200)},
	"empty tensor": codec.Tensor{DType: codec.DTypeFloat32, Shape: []int{0}, Data: []byte{}},
	"scalar":       codec.Tensor{DType: codec.DTypeInt64, Shape: []int{}, Data: []byte("\xc0\x07\x00\x00\x00\x00\x00\x00")},
	"bfloat16":     codec.Tensor{DType: codec.DTypeBFloat16, Shape: []int{2}, Data: []byte("\x80\x3f\x00\x40")},
	"image":        omni.Image{Mode: "RGB", Shape: []int{1, 2, 3}, Data: []byte("abcdef")},
	"nothing":      nil,
}

// TestVectors compares with bytes that vLLM-Omni itself wrote.
func TestVectors(t *testing.T) {
	vectors := codectest.Vectors(t, "testdata/vectors.txt")
	if len(vectors) != len(vectorValues) {
		t.Errorf("%d vectors, %d values", len(vectors), len(vectorValues))
	}
	for name, value := range vectorValues {
		got, err := omni.Serializer{}.Append(nil, value)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(vectors[name], [][]byte{got}); diff != "" {
			t.Errorf("%s (-Python +Go):\n%s", name, diff)
		}
		decoded, err := codec.Decode[any](omni.Serializer{}, got)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(value, decoded); diff != "" {
			t.Errorf("%s: changed (-want +got):\n%s", name, diff)
		}
	}
}
