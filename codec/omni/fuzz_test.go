package omni_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/omni"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

// FuzzDecode decodes into all kinds of targets. An accepted value must be
// encoded and decoded again without a change.
func FuzzDecode(f *testing.F) {
	for i := range 20 {
		payload, err := omni.Serializer{}.Append(nil, values().Example(i))
		if err != nil {
			f.Fatal(err)
		}
		if len(payload) < 4096 {
			f.Add(payload)
		}
	}
	payload, err := omni.Serializer{}.Append(nil, sampleChunk())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(payload)
	f.Fuzz(func(t *testing.T, src []byte) {
		targets := []any{
			new(any), new(map[string]any), new(map[any]any), new(map[string]codec.Tensor), new(map[int8]string), new([]any), new([][]byte),
			new(string), new([]byte), new([4]byte), new(int8), new(float32), new(error), new(python.Dict), new(python.Slice),
			new(chunk), new(*chunk), new(pair), new(codec.Tensor), new([]python.NDArray), new(omni.Image),
		}
		private := bytes.Clone(src)
		for _, target := range targets {
			if err := (omni.Serializer{}).Decode(private, target); err != nil {
				codectest.CheckError(t, err, new(*codec.PayloadError))
			}
		}
		checkAgain(t, private)
		if !bytes.Equal(private, src) {
			t.Fatal("decoding wrote to the payload")
		}
	})
}

func checkAgain(t *testing.T, src []byte) {
	t.Helper()
	s := omni.Serializer{KeepOrder: true}
	v, err := codec.Decode[any](s, src)
	if err != nil {
		codectest.CheckError(t, err, new(*codec.PayloadError))
		return
	}
	first, err := s.Append(nil, v)
	if err != nil {
		t.Fatalf("accepted, but cannot be encoded: %v", err)
	}
	if n, ok := s.Size(v); !ok || n != len(first) {
		t.Fatalf("Size %d, %v, but %d bytes", n, ok, len(first))
	}
	again, err := codec.Decode[any](s, first)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v, again, codectest.Equal); diff != "" {
		t.Fatalf("changed:\n%s", diff)
	}
	second, err := s.Append(nil, again)
	if err != nil || !bytes.Equal(first, second) {
		t.Fatalf("two encodings: %x, %x, %v", first, second, err)
	}
}
