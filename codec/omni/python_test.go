package omni_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/omni"
)

// values generates values of all kinds of the format.
func values() *rapid.Generator[any] {
	return codectest.Values(codectest.Tensors(), codectest.NDArrays(), codectest.Slices(), images())
}

func images() *rapid.Generator[any] {
	return rapid.SampledFrom([]any{
		omni.Image{Mode: "L", Shape: []int{2, 3}, Data: []byte("abcdef")},
		omni.Image{Mode: "RGB", Shape: []int{3, 2, 3}, Data: []byte(strings.Repeat("rgb", 6))},
		omni.Image{Mode: "RGBA", Shape: []int{30, 40, 4}, Data: []byte(strings.Repeat("rgba", 1200))},
	})
}

func describeImage(v any) []any {
	if m, ok := v.(omni.Image); ok {
		return []any{"image", m.Mode, m.Shape, hex.EncodeToString(m.Data)}
	}
	return nil
}

// TestAgainstPython has Python encode and decode the same values: with its class if
// $OMNIBUS_VLLM_OMNI names a folder with the package vllm_omni, else with msgspec.
func TestAgainstPython(t *testing.T) {
	s := omni.Serializer{KeepOrder: true}
	codectest.AgainstPython(t, codectest.Codec{
		Describe: describeImage,
		Encode: func(v any) ([][]byte, error) {
			payload, err := s.Append(nil, v)
			return [][]byte{payload}, err
		},
		Decode: func(buffers [][]byte, _ any) (any, error) { return codec.Decode[any](s, buffers[0]) },
	}, 200, values())
}
