package kv_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/kv"
)

// FuzzDecode decodes anything: without a panic, with a typed error or a
// payload that is no larger than its frame and reads back the same.
func FuzzDecode(f *testing.F) {
	f.Add(encode(f, sample(f)))
	f.Add(encode(f, kv.Payload{}))
	f.Add(frame(`{"rid":"r","bids":[1],"meta":{"f":1e3,"l":[null,-0.0]},"td":[{"n":"key_cache_0","x":true},`+
		`{"n":"value_cache_0","i":0,"d":"int16","s":[2,1],"o":1,"b":4}],"nl":1}`, 0, 1, 2, 3, 4))
	f.Fuzz(func(t *testing.T, src []byte) {
		private := bytes.Clone(src)
		p, err := codec.Decode[kv.Payload](kv.Serializer{}, private)
		if !bytes.Equal(private, src) {
			t.Fatal("decoding wrote to the payload")
		}
		if err != nil {
			codectest.CheckError(t, err, nil)
			return
		}
		size, empty := 0, false
		for _, layer := range p.Layers {
			for _, tensor := range []*codec.Tensor{layer.Key, layer.Value} {
				if tensor == nil {
					continue
				}
				if err := tensor.Validate(); err != nil {
					t.Fatal(err)
				}
				size += len(tensor.Data)
				empty = empty || len(tensor.Data) == 0
			}
		}
		if size > len(src) {
			t.Fatalf("%d bytes of tensors in a frame of %d", size, len(src))
		}
		if empty {
			return // what this package does not write
		}
		again, err := kv.Serializer{}.Append(nil, p)
		if errors.Is(err, codec.ErrLimit) {
			return // the same text can be longer in another spelling
		}
		if err != nil {
			t.Fatalf("what was decoded cannot be encoded: %v", err)
		}
		q, err := codec.Decode[kv.Payload](kv.Serializer{}, again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(p, q, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}
