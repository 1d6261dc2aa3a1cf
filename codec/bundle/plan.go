package bundle

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/msgspec"
)

// Source is a tensor in a value to encode whose bytes are in other memory, such
// as on a GPU. A type that has the method is written as a tensor; the caller of
// [NewPlan] decides whether its bytes go into the payload, or which place they are in.
type Source interface {
	// TensorType returns dtype and shape. The shape is not changed later.
	TensorType() (codec.DType, []int)
}

// Plan is a value that is about to be encoded: its tree and its tensors. It is
// not safe for concurrent use.
type Plan struct {
	// Places are the places of the bundle. Their number decides the size; their
	// fields may be set until EncodeInto.
	Places []Place
	// Tensors are the tensors in the value, in the order of the tree. The caller may
	// set Place of each and, in a place, Offset, until EncodeInto, and Strides, until
	// Size, and must not change the other fields.
	Tensors []Planned
	// MinBytes is the least size of a bundle that has places: zeros behind the bundle
	// fill it. It is ignored for bundles without places.
	MinBytes int

	tree []byte
}

// Planned is a tensor of a plan.
type Planned struct {
	// Tensor has no place at first. Data holds the bytes to copy into the payload,
	// or is nil for a [Source]; after EncodeInto, it is the tensor's part of the
	// payload, which the caller fills for a Source.
	Tensor
	// Source is the tensor as it is in the value: a [codec.Tensor], a *Tensor,
	// or a [Source].
	Source any
}

// usualTreeBytes is the first capacity of a tree, which few trees exceed.
const usualTreeBytes = 192

// NewPlan walks through v, lists its tensors and encodes the rest. Values are those of
// the package's documentation. NewPlan does not read the data of tensors. A tensor that is
// not valid is a [codec.ErrShape], a type that cannot
// be encoded a [codec.ErrType], and a value beyond the limits a
// [codec.ErrLimit].
func NewPlan(v any) (*Plan, error) {
	p := new(Plan)
	tree, err := msgspec.Append(&format{plan: p}, make([]byte, 0, usualTreeBytes), v)
	if err != nil {
		return nil, err
	}
	p.tree = tree
	return p, nil
}

// Size returns the size of the payload in bytes, with the present places of the tensors.
// It sets Bytes of all tensors, and Offset of those in the payload. An
// error is a [codec.ErrShape] or [codec.ErrLimit].
func (p *Plan) Size() (int, error) {
	if len(p.Places) > MaxPlaces {
		return 0, fmt.Errorf("codec: %s: encode: %w: %d places, at most %d", name, codec.ErrLimit, len(p.Places), MaxPlaces)
	}
	end := headerBytes + len(p.Places)*placeBytes + p.tableBytes() + len(p.tree)
	for i := range p.Tensors {
		t := &p.Tensors[i]
		if err := t.measure(len(p.Places)); err != nil {
			return 0, fmt.Errorf("codec: %s: encode: tensor %d: %w", name, i, err)
		}
		if t.Place != 0 {
			continue
		}
		if t.Offset = 0; t.Bytes > 0 {
			at := alignData(end)
			if end = at + int(t.Bytes); end < at {
				return 0, fmt.Errorf("codec: %s: encode: %w: the size overflows", name, codec.ErrLimit)
			}
			t.Offset = int64(at)
		}
	}
	if len(p.Places) > 0 {
		end = max(end, p.MinBytes)
	}
	return end, nil
}

// tableBytes returns the size of the table of tensors.
func (p *Plan) tableBytes() (size int) {
	for i := range p.Tensors {
		t := &p.Tensors[i]
		if t.Strides != nil && (t.Place == 0 || len(t.Strides) == len(t.Shape) && contiguous(t.Shape, t.Strides)) {
			t.Strides = nil
		}
		size += recordBytes(len(t.Shape), t.Strides != nil)
	}
	return size
}

// measure sets Bytes.
func (t *Tensor) measure(places int) error {
	if t.Place < 0 || t.Place > places {
		return t.shapeError(fmt.Sprintf("place %d of %d", t.Place, places))
	}
	if err := t.validateExtent(); err != nil {
		return err
	}
	t.Bytes, _ = extent(t.DType, t.Shape, t.Strides)
	return nil
}
