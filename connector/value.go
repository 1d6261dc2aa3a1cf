package connector

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
)

// A Value is what was got. It belongs to whoever got it.
type Value struct {
	payload    Payload
	serializer codec.Serializer
}

// Size returns the bytes of the encoded value.
func (v *Value) Size() int { return len(v.payload.Bytes()) }

// Bytes returns the encoded value, which is valid until Release and is not to be
// written to.
func (v *Value) Bytes() []byte { return v.payload.Bytes() }

// Decode decodes the value into a non-nil pointer. What the serializer returns
// as views is valid until Release.
func (v *Value) Decode(into any) error {
	if err := v.serializer.Decode(v.payload.Bytes(), into); err != nil {
		return fmt.Errorf("%w: %w", ErrDecode, err)
	}
	return nil
}

// Release gives the value's memory back. It is called once, and nothing of
// the value is used after it.
func (v *Value) Release() { v.payload.Release() }

// inline is a payload that came in the metadata.
type inline []byte

func (b inline) Bytes() []byte { return b }
func (b inline) Release()      {}
