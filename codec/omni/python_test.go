package omni_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/omni"
)

// values generates values of all kinds that the format has.
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

// TestAgainstPython has Python encode and decode the same values: its class if
// $OMNIBUS_VLLM_OMNI names a folder with the package vllm_omni, else msgspec.
func TestAgainstPython(t *testing.T) {
	const n = 200
	s := omni.Serializer{KeepOrder: true}
	generated := make([]any, n)
	cases := make([]codectest.Case, n)
	for i := range n {
		v := values().Example(i)
		payload, err := s.Append(nil, v)
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		generated[i] = v
		cases[i] = codectest.Case{Value: codectest.Describe(v, describeImage), Encoded: codectest.Hex(payload)}
	}
	answers, source := codectest.Ask(t, "omni", cases)
	skipped := map[string]int{}
	for i, a := range answers {
		if a.Skipped != "" {
			skipped[a.Skipped]++
			continue
		}
		if a.Difference != "" {
			t.Errorf("%d: Python decoded something else: %s", i, a.Difference)
		}
		if diff := cmp.Diff(a.Encoded, cases[i].Encoded); diff != "" {
			t.Errorf("%d: Python and Go encode %.80s differently (-Python +Go):\n%.600s", i, fmt.Sprint(generated[i]), diff)
			continue
		}
		payload, err := hex.DecodeString(a.Encoded[0])
		if err != nil {
			t.Fatal(err)
		}
		got, err := codec.Decode[any](s, payload)
		if err != nil {
			t.Errorf("%d: %v", i, err)
		} else if diff := cmp.Diff(normal(generated[i]), got, equal...); diff != "" {
			t.Errorf("%d: changed (-want +got):\n%.600s", i, diff)
		}
	}
	t.Logf("%d values, format from %s, skipped: %v", n, source, skipped)
}
