package connector

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
)

// A Value is a value that was got. It belongs to the caller of Get, which releases it.
type Value struct {
	payload    Payload
	serializer codec.Serializer
}

// Size returns the bytes of the encoded value.
func (v *Value) Size() int { return len(v.payload.Bytes()) }

// Bytes returns the encoded value, which is valid until Release. The caller does not write to it.
func (v *Value) Bytes() []byte { return v.payload.Bytes() }

// Decode decodes the value into a non-nil pointer. Views that the serializer returns are valid
// until Release.
func (v *Value) Decode(into any) error {
	if err := v.serializer.Decode(v.payload.Bytes(), into); err != nil {
		return fmt.Errorf("%w: %w", ErrDecode, err)
	}
	return nil
}

// Release releases the value's memory. The caller calls it once, and does not use the value after
// it.
func (v *Value) Release() { v.payload.Release() }

// inline is a payload that was in the metadata.
type inline []byte

func (b inline) Bytes() []byte { return b }
func (b inline) Release()      {}
