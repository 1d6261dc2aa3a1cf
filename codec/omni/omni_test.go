package omni_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/omni"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

// equal compares values bit by bit where cmp would not.
var equal = []cmp.Option{
	cmp.Comparer(func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }),
	cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }),
}

// normal returns what v is after it has been sent: slices are lists.
func normal(v any) any {
	switch v := v.(type) {
	case python.Slice:
		list := []any{nil, nil, nil}
		for i, part := range []*int{v.Start, v.Stop, v.Step} {
			if part != nil {
				list[i] = int64(*part)
			}
		}
		return list
	case []any:
		list := make([]any, len(v))
		for i, element := range v {
			list[i] = normal(element)
		}
		return list
	case python.Dict:
		dict := make(python.Dict, len(v))
		for i, item := range v {
			dict[i] = python.Item{Key: item.Key, Value: normal(item.Value)}
		}
		return dict
	case uint64:
		if v <= math.MaxInt64 {
			return int64(v)
		}
	}
	return v
}

func TestContract(t *testing.T) {
	tensor := codec.Tensor{DType: codec.DTypeInt8, Shape: []int{2}, Data: []byte{1, 2}}
	for name, value := range map[string]any{
		"nil": nil, "text": "text", "tensor": tensor, "pointer": &tensor, "image": omni.Image{Mode: "L", Shape: []int{1, 1}, Data: []byte{7}},
		"nested": map[string]any{"a": []any{1, 2.5, tensor}, "b": map[int]string{-1: "x", 5: "y"}},
		"struct": new(sampleChunk()),
	} {
		t.Run(name, func(t *testing.T) {
			codectest.Contract(t, omni.Serializer{}, value, []any{make(chan int)}, (*any)(nil))
		})
	}
}

func TestRegistered(t *testing.T) {
	r := codec.Default()
	if err := r.Register(omni.Serializer{}); err != nil {
		t.Fatal(err)
	}
	if s, err := r.ByID(codec.IDOmni); err != nil || s.Name() != "omni" {
		t.Errorf("got %v, %v", s, err)
	}
}

func TestRoundTrip(t *testing.T) {
	s := omni.Serializer{KeepOrder: true}
	rapid.Check(t, func(t *rapid.T) {
		want := values().Draw(t, "value")
		payload, err := s.Append(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := codec.Decode[any](s, payload)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(normal(want), got, equal...); diff != "" {
			t.Fatalf("changed (-want +got):\n%s", diff)
		}
	})
}
