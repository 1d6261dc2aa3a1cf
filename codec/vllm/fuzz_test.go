package vllm_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/python"
	"github.com/omnibus-runtime/omnibus/codec/vllm"
)

// FuzzDecode decodes two buffers into all kinds of targets. What is accepted
// must be encoded and decoded again without a change.
func FuzzDecode(f *testing.F) {
	for i := range 20 {
		buffers, err := vllm.Encode(values().Example(i), vllm.Options{})
		if err != nil {
			f.Fatal(err)
		}
		if buffers = append(buffers, nil); len(buffers[0]) < 4096 {
			f.Add(buffers[0], buffers[1])
		}
	}
	for _, value := range vectorValues {
		buffers, err := vllm.Encode(value, vllm.Options{})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(buffers[0], append(buffers, nil)[1])
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		buffers := [][]byte{bytes.Clone(first), bytes.Clone(second)}
		for _, target := range []any{
			new(any), new(output), new(codec.Tensor), new(python.NDArray), new([]codec.Tensor), new(map[string]python.NDArray), new([][]byte),
			new(vllm.Raw), new(map[any]any), new(*item), new([]python.Slice),
		} {
			if err := (vllm.Decoder{}).Decode(buffers, target); err != nil {
				codectest.CheckError(t, err, new(*codec.PayloadError))
			}
		}
		var v any
		d := vllm.Decoder{KeepOrder: true}
		if err := d.Decode(buffers, &v); err == nil {
			checkAgain(t, d, v, buffers)
		}
		var tensor codec.Tensor
		if err := d.Decode(buffers, &tensor); err == nil {
			checkTensor(t, d, tensor)
		}
		if !bytes.Equal(buffers[0], first) || !bytes.Equal(buffers[1], second) {
			t.Fatal("decoding wrote to the buffers")
		}
	})
}

// checkAgain encodes a value that was decoded without types, which has no
// buffers of its own.
func checkAgain(t *testing.T, d vllm.Decoder, v any, buffers [][]byte) {
	t.Helper()
	if array, err := vllm.Interpret(v, buffers); err == nil {
		if _, err := vllm.Encode(array, vllm.Options{}); err != nil {
			t.Fatalf("interpreted, but cannot be encoded: %v", err)
		}
	}
	encoded, err := vllm.Encode(v, vllm.Options{})
	if err != nil || len(encoded) != 1 {
		t.Fatalf("accepted, but cannot be encoded: %v", err)
	}
	var again any
	if err := d.Decode(encoded, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v, again, codectest.Equal); diff != "" {
		t.Fatalf("changed:\n%s", diff)
	}
}

func checkTensor(t *testing.T, d vllm.Decoder, tensor codec.Tensor) {
	t.Helper()
	for _, threshold := range []int{1, 1 << 30} {
		buffers, err := vllm.Encode(tensor, vllm.Options{ThresholdBytes: threshold})
		if err != nil {
			t.Fatal(err)
		}
		var again codec.Tensor
		if err := d.Decode(buffers, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tensor, again); diff != "" {
			t.Fatalf("changed:\n%s", diff)
		}
	}
}
