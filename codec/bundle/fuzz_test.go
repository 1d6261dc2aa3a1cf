package bundle_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
)

// FuzzDecode decodes any bytes without a panic, to a typed error, or to a value
// that is encoded into the same tables again, and decoded to the same value.
func FuzzDecode(f *testing.F) {
	for _, s := range samples() {
		payload, err := s.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload)
	}
	f.Add(sampleBytes(f))
	for _, tt := range hostile(f) {
		if len(tt.src) <= 4096 {
			f.Add(tt.src)
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		private := bytes.Clone(src)
		for _, target := range []any{new(any), new(step), new([]codec.Tensor), new(map[string]*bundle.Tensor), new(bundle.Tensor)} {
			if err := (bundle.Serializer{}).Decode(private, target); err != nil {
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
	b, err := bundle.Open(src)
	if err != nil {
		return
	}
	value, err := b.DecodeInOrder()
	if err != nil {
		return
	}
	inside := 0
	for i := range b.Tensors {
		inside += len(b.Tensors[i].Data)
	}
	if inside > len(src) {
		t.Fatalf("%d bytes of tensors in a payload of %d", inside, len(src))
	}
	s := sample{value: value, places: b.Places, minBytes: len(src)}
	first, err := s.encode()
	if err != nil {
		t.Fatalf("accepted, but cannot be encoded: %v", err)
	}
	again, err := bundle.Open(first)
	if err != nil {
		t.Fatal(err)
	}
	for i := range again.Tensors { // the tree may have become shorter
		if again.Tensors[i].Place == 0 {
			again.Tensors[i].Offset = b.Tensors[i].Offset
		}
	}
	if diff := cmp.Diff(b.Tensors, again.Tensors, codectest.Equal); diff != "" {
		t.Fatalf("tensors changed:\n%s", diff)
	}
	same, err := again.DecodeInOrder()
	if err != nil {
		t.Fatal(err)
	}
	for i := range again.Tensors {
		b.Tensors[i].Offset = again.Tensors[i].Offset
	}
	if diff := cmp.Diff(value, same, codectest.Equal); diff != "" {
		t.Fatalf("changed:\n%s", diff)
	}
}
