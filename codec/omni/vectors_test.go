package omni_test

import (
	"bufio"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
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
	for name, want := range readVectors(t) {
		value, ok := vectorValues[name]
		if !ok {
			t.Errorf("%s: no value", name)
			continue
		}
		got, err := omni.Serializer{}.Append(nil, value)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if hex.EncodeToString(got) != want {
			t.Errorf("%s: got %x, want %s", name, got, want)
		}
		decoded, err := codec.Decode[any](omni.Serializer{}, got)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(value, decoded); diff != "" {
			t.Errorf("%s: changed (-want +got):\n%s", name, diff)
		}
	}
}

func readVectors(t *testing.T) map[string]string {
	t.Helper()
	f, err := os.Open("testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	vectors := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, encoded, ok := strings.Cut(lines.Text(), ": ")
		if ok && !strings.HasPrefix(name, "#") {
			vectors[name] = encoded
		}
	}
	if len(vectors) != len(vectorValues) {
		t.Fatalf("%d vectors, %d values", len(vectors), len(vectorValues))
	}
	return vectors
}
