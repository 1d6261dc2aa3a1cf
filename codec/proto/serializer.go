package proto

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/omnibus-runtime/omnibus/codec"
)

// Limits of a payload.
const (
	// MaxBytes bounds its size.
	MaxBytes = 64 << 20
	// MaxDepth bounds nested messages; the payload is the first level. Other
	// implementations have the same limit.
	MaxDepth = 100
)

const name = "proto"

// Serializer encodes messages, and decodes into a message or a pointer to a
// message pointer.
type Serializer struct{}

var _ codec.Sizer = Serializer{}

// Name returns "proto".
func (Serializer) Name() string { return name }

// ID returns [codec.IDProto].
func (Serializer) ID() codec.ID { return codec.IDProto }

// Size returns the size of the payload of v, a message. It reports false for
// one beyond MaxBytes.
func (Serializer) Size(v any) (sizeBytes int, ok bool) {
	m, err := message(v)
	if err != nil {
		return 0, false
	}
	n := proto.Size(m)
	return n, n <= MaxBytes
}

// EncodeInto fills dst with the payload of v, a message.
func (Serializer) EncodeInto(dst []byte, v any) error {
	// Without capacity beyond dst, append moves a larger message to new memory.
	out, err := appendTo(dst[:0:len(dst)], v)
	if err != nil {
		return err
	}
	if len(out) != len(dst) {
		return &codec.SizeError{Serializer: name, Got: len(dst), Want: len(out)}
	}
	return nil
}

// Append appends the payload of v, a message, to dst.
func (Serializer) Append(dst []byte, v any) ([]byte, error) {
	out, err := appendTo(dst, v)
	if err != nil {
		return dst, err
	}
	return out, nil
}

func appendTo(dst []byte, v any) ([]byte, error) {
	m, err := message(v)
	if err != nil {
		return nil, err
	}
	if n := proto.Size(m); n > MaxBytes {
		return nil, fmt.Errorf("codec: %s: encode %T: %w: %d bytes, at most %d", name, v, codec.ErrLimit, n, MaxBytes)
	}
	out, err := proto.MarshalOptions{}.MarshalAppend(dst, m)
	if err != nil {
		return nil, fmt.Errorf("codec: %s: encode %T: %w: %w", name, v, codec.ErrType, err)
	}
	return out, nil
}

// message returns v as a message. A nil pointer of a generated type is
// refused, although the library would encode it as an empty message.
func message(v any) (proto.Message, error) {
	if m, ok := v.(proto.Message); ok && isValid(m) {
		return m, nil
	}
	return nil, typeError(v, "a non-nil proto.Message")
}

func isValid(m proto.Message) bool { return m.ProtoReflect().IsValid() }

// Decode decodes src into v, a message or a pointer to a message pointer.
func (Serializer) Decode(src []byte, v any) error {
	m, pointer, err := target(v)
	if err != nil {
		return err
	}
	if len(src) > MaxBytes {
		return decodeError(v, codec.ErrLimit, fmt.Errorf("%d bytes, at most %d", len(src), MaxBytes))
	}
	opts := proto.UnmarshalOptions{RecursionLimit: MaxDepth, AllowPartial: true}
	if err := opts.Unmarshal(bytes.Clone(src), m); err != nil {
		return decodeError(v, kindOf(err), err)
	}
	if err := proto.CheckInitialized(m); err != nil {
		return decodeError(v, codec.ErrMismatch, err)
	}
	if pointer.IsValid() {
		pointer.Set(reflect.ValueOf(m))
	}
	return nil
}

// target returns the message to decode into, and the pointer to set to it
// afterwards if v points to one.
func target(v any) (m proto.Message, pointer reflect.Value, err error) {
	if m, err := message(v); err == nil {
		return m, reflect.Value{}, nil
	}
	p := reflect.ValueOf(v)
	if p.Kind() == reflect.Pointer && !p.IsNil() && p.Elem().Kind() == reflect.Pointer {
		fresh, ok := reflect.New(p.Elem().Type().Elem()).Interface().(proto.Message)
		if ok && isValid(fresh) { // a new dynamic message has no type, and is not valid
			return fresh, p.Elem(), nil
		}
	}
	return nil, reflect.Value{}, typeError(v, "a non-nil proto.Message, or a pointer to a pointer of a generated type")
}

// kindOf distinguishes an exceeded limit from malformed bytes. The library has no error
// value to compare with, so kindOf compares the text; a test checks the text.
func kindOf(err error) error {
	if strings.Contains(err.Error(), "recursion depth") {
		return codec.ErrLimit
	}
	return codec.ErrMalformed
}

func decodeError(v any, kind, cause error) error {
	return fmt.Errorf("codec: %s: decode into %T: %w: %w", name, v, kind, cause)
}

func typeError(v any, want string) error {
	return &codec.TypeError{Serializer: name, Type: fmt.Sprintf("%T", v), Want: want}
}
