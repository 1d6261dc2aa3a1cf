package omni_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/omni"
)

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
		if diff := cmp.Diff(codectest.Arrived(want), got, codectest.Equal); diff != "" {
			t.Fatalf("changed (-want +got):\n%s", diff)
		}
	})
}
