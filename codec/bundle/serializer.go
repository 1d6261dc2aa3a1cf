package bundle

import (
	"fmt"
	"slices"

	"github.com/omnibus-runtime/omnibus/codec"
)

// Serializer encodes values whose tensors all go into the payload, and decodes
// any bundle.
type Serializer struct{}

var _ codec.Sizer = Serializer{}

// Name returns "bundle".
func (Serializer) Name() string { return name }

// ID returns [codec.IDBundle].
func (Serializer) ID() codec.ID { return codec.IDBundle }

// Size returns the size of the bundle of v. It reports false for a value that
// cannot be encoded; Append says why.
func (Serializer) Size(v any) (sizeBytes int, ok bool) {
	_, n, err := plan(v)
	return n, err == nil
}

// EncodeInto fills dst with the bundle of v. The data of tensors is copied once.
func (Serializer) EncodeInto(dst []byte, v any) error {
	p, _, err := plan(v)
	if err != nil {
		return err
	}
	return p.EncodeInto(dst)
}

// Append appends the bundle of v to dst. Data is aligned relative to the start of
// the payload, not of dst.
func (Serializer) Append(dst []byte, v any) ([]byte, error) {
	p, n, err := plan(v)
	if err != nil {
		return dst, err
	}
	out := slices.Grow(dst, n)[:len(dst)+n]
	if err := p.EncodeInto(out[len(dst):]); err != nil {
		return dst, err
	}
	return out, nil
}

// Decode decodes the bundle src into *v. A tensor in the payload becomes a
// [codec.Tensor], one in a place a *[Tensor]; Tensor and *Tensor as the types of
// targets take both. Data and other binary data are views of src; all else is
// copied. The error is a [*codec.PayloadError].
func (Serializer) Decode(src []byte, v any) error {
	b, err := Open(src)
	if err != nil {
		return err
	}
	return b.Decode(v, nil)
}

// plan plans v, all of whose tensors go into the payload.
func plan(v any) (*Plan, int, error) {
	p, err := NewPlan(v)
	if err != nil {
		return nil, 0, err
	}
	for i := range p.Tensors {
		t := &p.Tensors[i]
		if _, foreign := t.Source.(Source); foreign || t.Place != 0 {
			return nil, 0, fmt.Errorf("codec: %s: encode: tensor %d, %v: %w %T: its bytes are not in this process's memory; a Plan can say where they are",
				name, i, &t.Tensor, codec.ErrType, t.Source)
		}
	}
	n, err := p.Size()
	return p, n, err
}
