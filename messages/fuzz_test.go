package messages_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/messages"
)

// FuzzParseDelivery: any bytes are an error or a valid delivery that survives
// the way back to the wire.
func FuzzParseDelivery(f *testing.F) {
	for _, d := range []messages.Delivery{
		valid(),
		{Edge: "a->b", EOS: true},
		{Edge: "a->b", Inline: []byte{}},
		{Edge: "a->b", Inline: []byte("pcm"), Codec: 3, Seq: 1 << 40},
	} {
		b, err := d.AppendBinary(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := messages.ParseDelivery(b)
		if err != nil {
			if !errors.Is(err, messages.ErrMalformed) {
				t.Fatalf("error %v, want ErrMalformed", err)
			}
			return
		}
		if err := d.Validate(); err != nil {
			t.Fatalf("ParseDelivery let through what Validate refuses: %v", err)
		}
		out, err := d.AppendBinary(nil)
		if err != nil {
			t.Fatalf("AppendBinary of a parsed delivery: %v", err)
		}
		again, err := messages.ParseDelivery(out)
		if err != nil {
			t.Fatalf("second ParseDelivery: %v", err)
		}
		if diff := cmp.Diff(d, again); diff != "" {
			t.Fatalf("the way back changed the delivery (-first +second):\n%s", diff)
		}
	})
}

// FuzzParseHandle: 40 bytes are a handle and come back as they were; any other
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
			if !errors.Is(err, messages.ErrMalformedHandle) {
				t.Fatalf("%d bytes: error %v, want ErrMalformedHandle", len(b), err)
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
			t.Fatalf("the way back changed the handle:\n %x\n %x", b, out)
		}
	})
}
