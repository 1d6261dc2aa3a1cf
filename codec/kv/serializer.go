package kv

import (
	"fmt"
	"slices"

	"github.com/omnibus-runtime/omnibus/codec"
)

const name = "kv"

// Serializer encodes a Payload or *Payload into a frame, and decodes a frame
// into a *Payload whose tensors are views of it.
type Serializer struct{}

var _ codec.Sizer = Serializer{}

// Name returns "kv".
func (Serializer) Name() string { return name }

// ID returns [codec.IDKV].
func (Serializer) ID() codec.ID { return codec.IDKV }

// Size returns the size of the frame of v. It reports false for what cannot
// be encoded.
func (s Serializer) Size(v any) (sizeBytes int, ok bool) {
	l, err := s.layout(v)
	if err != nil {
		return 0, false
	}
	return l.size, true
}

// EncodeInto fills dst with the frame of v. Tensors are aligned relative to
// the start of dst.
func (s Serializer) EncodeInto(dst []byte, v any) error {
	l, err := s.layout(v)
	if err != nil {
		return err
	}
	if len(dst) != l.size {
		return &codec.SizeError{Serializer: name, Got: len(dst), Want: l.size}
	}
	l.write(dst)
	return nil
}

// Append appends the frame of v to dst. Tensors are aligned relative to the
// start of the frame, not of dst.
func (s Serializer) Append(dst []byte, v any) ([]byte, error) {
	l, err := s.layout(v)
	if err != nil {
		return dst, err
	}
	start := len(dst)
	dst = slices.Grow(dst, l.size)[:start+l.size]
	l.write(dst[start:])
	return dst, nil
}

// Decode makes *v, a Payload, what the frame src holds. Its tensors are views
// of src.
func (s Serializer) Decode(src []byte, v any) error {
	p, ok := v.(*Payload)
	if !ok || p == nil {
		return typeError(v, "a non-nil *kv.Payload")
	}
	got, err := decode(src)
	if err != nil {
		return err
	}
	*p = got
	return nil
}

func (s Serializer) layout(v any) (layout, error) {
	switch v := v.(type) {
	case Payload:
		return layoutOf(&v)
	case *Payload:
		if v != nil {
			return layoutOf(v)
		}
	}
	return layout{}, typeError(v, "a kv.Payload or a non-nil *kv.Payload")
}

func typeError(v any, want string) error {
	return &codec.TypeError{Serializer: name, Type: fmt.Sprintf("%T", v), Want: want}
}
