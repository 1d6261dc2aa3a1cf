package vllm

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/msgspec"
)

// DefaultThresholdBytes is vLLM's own default for [Options].
const DefaultThresholdBytes = 256

// Options say how to encode.
type Options struct {
	// ThresholdBytes is the size from which on data go into a buffer of their
	// own. Zero stands for DefaultThresholdBytes. The data of an array without
	// dimensions, but not those of such a tensor, count as small whatever their
	// size. Receivers take both in any size.
	ThresholdBytes int
}

// Encode returns the buffers of v. The first is new, the others are the data
// of v's large tensors and arrays themselves.
//
// A value that the format has no place for is a [codec.ErrType], one beyond
// the limits a [codec.ErrLimit], and a tensor or array that is not valid a
// [codec.ErrShape].
func Encode(v any, o Options) ([][]byte, error) {
	if o.ThresholdBytes == 0 {
		o.ThresholdBytes = DefaultThresholdBytes
	}
	f := &format{threshold: o.ThresholdBytes, buffers: make([][]byte, 1)}
	first, err := msgspec.Append(f, nil, v)
	if err != nil {
		return nil, err
	}
	f.buffers[0] = first
	return f.buffers, nil
}

// Decoder decodes buffers. The zero value is ready to use.
type Decoder struct {
	// KeepOrder decodes dicts whose Go type is any into python.Dict instead of
	// map[string]any.
	KeepOrder bool
}

// Decode decodes buffers into *v. Binary data and the data of tensors and
// arrays are views of the buffers; all else is copied, and nothing that *v
// held before is used. The error is a [*codec.PayloadError], or a
// [codec.ErrType] for a v that is no pointer.
func (d Decoder) Decode(buffers [][]byte, v any) error {
	if len(buffers) == 0 {
		return &codec.PayloadError{Serializer: name, Reason: "no buffers", Err: codec.ErrMalformed}
	}
	return msgspec.Decode(&format{buffers: buffers}, buffers[0], v, d.KeepOrder)
}

// Interpret returns the tensor or the array that v stands for, a list that
// [Decoder.Decode] has put into an any: a [codec.Tensor] if its dtype is one of
// PyTorch's, a [python.NDArray] if it is one of NumPy's. The buffers are those
// that v was decoded from, of which the result has views. The error wraps
// [codec.ErrMismatch] if v is no such list, and [codec.ErrMalformed] if it is one
// that does not fit the buffers.
func Interpret(v any, buffers [][]byte) (any, error) {
	f := &format{buffers: buffers}
	array, err := f.array(v)
	if err != nil {
		return nil, fmt.Errorf("codec: %s: interpret %T: %w: %w", name, v, msgspec.Kind(err), err)
	}
	return array, nil
}
