package omni

import (
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/msgspec"
)

// Serializer reads and writes vLLM-Omni's format. The zero value is what a
// registry takes.
type Serializer struct {
	// KeepOrder decodes dicts whose Go type is any into python.Dict instead of
	// map[string]any.
	KeepOrder bool
}

var _ codec.Sizer = Serializer{}

// Name returns "omni".
func (Serializer) Name() string { return name }

// ID returns [codec.IDOmni].
func (Serializer) ID() codec.ID { return codec.IDOmni }

// Size returns the encoded size of v. It reports false for a value that
// cannot be encoded; Append says why.
func (Serializer) Size(v any) (sizeBytes int, ok bool) {
	n, err := msgspec.Size(format{}, v)
	return n, err == nil
}

// EncodeInto fills dst with the encoding of v. Binary data and the data of
// tensors, arrays and images are copied once.
func (Serializer) EncodeInto(dst []byte, v any) error {
	return msgspec.EncodeInto(format{}, dst, v)
}

// Append appends the encoding of v to dst. A value that has no encoding in the format
// is a [codec.ErrType], one beyond the limits a [codec.ErrLimit],
// and a tensor, array or image that is not valid a [codec.ErrShape].
func (Serializer) Append(dst []byte, v any) ([]byte, error) {
	return msgspec.Append(format{}, dst, v)
}

// Decode decodes src into *v. Binary data and the data of tensors, arrays and
// images are views of src; all else is copied, and the old content of *v is not
// used. The error is a [*codec.PayloadError].
func (s Serializer) Decode(src []byte, v any) error {
	return msgspec.Decode(format{}, src, v, s.KeepOrder)
}
