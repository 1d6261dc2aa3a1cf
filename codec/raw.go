package codec

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec/internal/pack"
)

const rawName = "raw"

// RawSerializer passes bytes through: the payload is the value. It encodes
// []byte and string, and decodes each payload into *[]byte or *string.
//
// A decoded []byte is a view of the payload, with no capacity beyond it. A
// decoded string is a copy: Go code relies on strings that never change, and
// a payload's memory is used again.
type RawSerializer struct{}

var _ Sizer = RawSerializer{}

// Name returns "raw".
func (RawSerializer) Name() string { return rawName }

// ID returns [IDRaw].
func (RawSerializer) ID() ID { return IDRaw }

// Size returns the length of v, a []byte or a string.
func (RawSerializer) Size(v any) (sizeBytes int, ok bool) {
	switch v := v.(type) {
	case []byte:
		return len(v), true
	case string:
		return len(v), true
	}
	return 0, false
}

// EncodeInto copies v, a []byte or a string, into dst.
func (s RawSerializer) EncodeInto(dst []byte, v any) error {
	n, ok := s.Size(v)
	if !ok {
		return s.typeError(v, "[]byte or string")
	}
	if len(dst) != n {
		return &SizeError{Serializer: s.Name(), Got: len(dst), Want: n}
	}
	switch v := v.(type) {
	case []byte:
		pack.Copy(dst, v)
	case string:
		pack.Copy(dst, v)
	}
	return nil
}

// Append appends v, a []byte or a string, to dst.
func (s RawSerializer) Append(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case []byte:
		return pack.Append(dst, v), nil
	case string:
		return pack.Append(dst, v), nil
	}
	return dst, s.typeError(v, "[]byte or string")
}

// Decode makes *v a view of src if v is a *[]byte, and a copy of it if v is a
// *string.
func (s RawSerializer) Decode(src []byte, v any) error {
	switch v := v.(type) {
	case *[]byte:
		if v != nil {
			*v = src[:len(src):len(src)]
			return nil
		}
	case *string:
		if v != nil {
			*v = string(src)
			return nil
		}
	}
	return s.typeError(v, "a non-nil *[]byte or *string")
}

func (s RawSerializer) typeError(v any, want string) error {
	return &TypeError{Serializer: s.Name(), Type: fmt.Sprintf("%T", v), Want: want}
}
