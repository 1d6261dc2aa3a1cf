package codectest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
)

// Contract checks the promises of every serializer. Bad is a value that cannot
// be encoded, target a nil pointer of a type that can be decoded into.
func Contract(t *testing.T, s codec.Serializer, value, bad, target any) {
	t.Helper()
	payload, err := s.Append(nil, value)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("append keeps what is there", func(t *testing.T) {
		got, err := s.Append([]byte("before"), value)
		if err != nil {
			t.Fatal(err)
		}
		if want := append([]byte("before"), payload...); !bytes.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("append stays in place", func(t *testing.T) {
		room := bytes.Repeat([]byte{0xee}, len(payload)+1)
		got, err := s.Append(room[:0], value)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(room[:len(payload)], payload) || len(got) != len(payload) {
			t.Error("Append left memory with enough capacity")
		}
	})
	t.Run("bad value", func(t *testing.T) {
		if _, err := s.Append(nil, bad); !errors.Is(err, codec.ErrType) {
			t.Errorf("got %v, want ErrType", err)
		}
	})
	t.Run("bad target", func(t *testing.T) {
		for _, target := range []any{target, nil, 1, struct{}{}} {
			var typed *codec.TypeError
			if err := s.Decode(payload, target); !errors.As(err, &typed) || !errors.Is(err, codec.ErrType) {
				t.Errorf("%T: got %v, want a TypeError", target, err)
			}
		}
	})
	if sizer, ok := s.(codec.Sizer); ok {
		checkSizer(t, sizer, value, bad, payload)
	}
}

func checkSizer(t *testing.T, s codec.Sizer, value, bad any, payload []byte) {
	t.Helper()
	n, ok := s.Size(value)
	if !ok || n != len(payload) {
		t.Fatalf("Size = %d, %v, want %d", n, ok, len(payload))
	}
	dst := bytes.Repeat([]byte{0xee}, n)
	if err := s.EncodeInto(dst, value); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(dst, payload) {
		t.Errorf("EncodeInto differs from Append: %x, want %x", dst, payload)
	}
	for _, wrong := range []int{n - 1, n + 1} {
		var size *codec.SizeError
		err := s.EncodeInto(make([]byte, max(wrong, 0)), value)
		if wrong >= 0 && (!errors.As(err, &size) || !errors.Is(err, codec.ErrSize) || size.Got != wrong || size.Want != n) {
			t.Errorf("EncodeInto %d bytes: got %v, want a SizeError", wrong, err)
		}
	}
	if n, ok := s.Size(bad); ok {
		t.Errorf("Size of a bad value = %d, true", n)
	}
	if err := s.EncodeInto(nil, bad); !errors.Is(err, codec.ErrType) {
		t.Errorf("EncodeInto of a bad value: got %v, want ErrType", err)
	}
}
