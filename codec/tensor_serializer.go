package codec

import (
	"fmt"
	"slices"

	"github.com/omnibus-runtime/omnibus/codec/internal/pack"
)

const tensorName = "tensor"

// TensorSerializer encodes a Tensor or *Tensor into a tensor payload, and
// decodes a payload into a *Tensor. A decoded tensor is a view of the
// payload, see [ViewTensor].
type TensorSerializer struct{}

var _ Sizer = TensorSerializer{}

// Name returns "tensor".
func (TensorSerializer) Name() string { return tensorName }

// ID returns [IDTensor].
func (TensorSerializer) ID() ID { return IDTensor }

// Size returns the size of the payload of v, a Tensor or *Tensor. It reports
// false for a tensor that is not valid.
func (s TensorSerializer) Size(v any) (sizeBytes int, ok bool) {
	t, err := s.tensor(v)
	if err != nil {
		return 0, false
	}
	return dataOffset(len(t.Shape)) + len(t.Data), true
}

// EncodeInto fills dst with the payload of v, a Tensor or *Tensor.
func (s TensorSerializer) EncodeInto(dst []byte, v any) error {
	t, err := s.tensor(v)
	if err != nil {
		return err
	}
	if want := dataOffset(len(t.Shape)) + len(t.Data); len(dst) != want {
		return &SizeError{Serializer: s.Name(), Got: len(dst), Want: want}
	}
	t.encodeInto(dst)
	return nil
}

// Append appends the payload of v, a Tensor or *Tensor, to dst. Data is
// aligned relative to the start of the payload, not of dst.
func (s TensorSerializer) Append(dst []byte, v any) ([]byte, error) {
	t, err := s.tensor(v)
	if err != nil {
		return dst, err
	}
	start, size := len(dst), dataOffset(len(t.Shape))+len(t.Data)
	dst = slices.Grow(dst, size)[:start+size]
	t.encodeInto(dst[start:])
	return dst, nil
}

// Decode makes *v, a Tensor, a view of src.
func (s TensorSerializer) Decode(src []byte, v any) error {
	t, ok := v.(*Tensor)
	if !ok || t == nil {
		return s.typeError(v, "a non-nil *codec.Tensor")
	}
	view, err := ViewTensor(src)
	if err != nil {
		return err
	}
	*t = view
	return nil
}

// tensor returns the valid tensor that v is or points to.
func (s TensorSerializer) tensor(v any) (Tensor, error) {
	switch v := v.(type) {
	case Tensor:
		return v, v.Validate()
	case *Tensor:
		if v != nil {
			return *v, v.Validate()
		}
	}
	return Tensor{}, s.typeError(v, "a codec.Tensor or a non-nil *codec.Tensor")
}

func (s TensorSerializer) typeError(v any, want string) error {
	return &TypeError{Serializer: s.Name(), Type: fmt.Sprintf("%T", v), Want: want}
}

// encodeInto writes the payload of a valid tensor into dst, which has its size.
func (t Tensor) encodeInto(dst []byte) {
	pack.Copy(dst[putHeader(dst, t.DType, t.Shape):], t.Data)
}
