package messages_test

import (
	"bytes"
	"testing"

	"github.com/omnibus-runtime/omnibus/messages"
)

// FuzzParseHandle: 40 bytes are a handle and are encoded to the same bytes again; any other
// number is an error.
func FuzzParseHandle(f *testing.F) {
	b, err := messages.Handle{Store: 1, Gen: 2, Offset: 3, Size: 4, Slot: 5, Codec: 6}.MarshalBinary()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:messages.HandleSize-1])
	f.Add(append(b, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h messages.Handle
		err := h.UnmarshalBinary(b)
		if len(b) != messages.HandleSize {
			if err == nil {
				t.Fatalf("%d bytes are a handle", len(b))
			}
			return
		}
		if err != nil {
			t.Fatalf("UnmarshalBinary: %v", err)
		}
		out, err := h.MarshalBinary()
		if err != nil {
			t.Fatalf("MarshalBinary: %v", err)
		}
		if !bytes.Equal(b, out) {
			t.Fatalf("the second encoding differs:\n %x\n %x", b, out)
		}
	})
}
