package bundle

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/shape"
)

// Tensor is a tensor of a bundle, in its payload or in one of its places.
type Tensor struct {
	DType codec.DType
	// Shape holds the dimensions, outermost first. An empty shape is that of
	// a scalar; a dimension may be 0.
	Shape []int
	// Strides holds the distance of neighbours along each dimension, in elements. None is
	// negative, and a stride of 0 repeats the same elements. Nil
	// means contiguous, in row-major order, as a tensor in the payload is.
	Strides []int
	// Place is the memory of the bytes: 0 is the payload, n is Places[n-1].
	Place int
	// Offset is the position of the first element, in the place or in the payload.
	Offset int64
	// Bytes is how many bytes there are from the first element to the end of
	// the last. With strides that differs from the number of elements times the size of
	// an element, and can be less.
	Bytes int64
	// Data holds the elements of a tensor in the payload, as a view of it.
	Data []byte
}

// InPayload returns the tensor if its bytes are in the payload.
func (t *Tensor) InPayload() (codec.Tensor, bool) {
	if t.Place != 0 {
		return codec.Tensor{}, false
	}
	return codec.Tensor{DType: t.DType, Shape: t.Shape, Data: t.Data}, true
}

// String returns dtype, shape and place, such as "float32[2 3] in place 1".
func (t *Tensor) String() string {
	text := fmt.Sprintf("%v%v", t.DType, t.Shape)
	if t.Place != 0 {
		text += fmt.Sprintf(" in place %d", t.Place)
	}
	return text
}

// PlaceKind is the kind of a place, which decides the meaning of its fields.
type PlaceKind uint32

// The kinds of places.
const (
	PlacePool   PlaceKind = 1 // a chunk of an arena of a pool
	PlaceHandle PlaceKind = 2 // an allocation of the producer's own
)

// Place is memory outside the payload, in which tensors lie. The code that opens the
// place checks its fields; this package accesses no memory but the payload.
type Place struct {
	Kind   PlaceKind
	Device [16]byte // the GPU's UUID
	// Pool, Slot and Generation name the piece of memory, and the word that
	// signals that its contents are ready.
	Pool             [16]byte
	Slot, Generation uint32
	Arena            uint32 // of the pool, if the kind is PlacePool
	// Offset is where the place begins, in the arena or from the base of the
	// handle's allocation.
	Offset int64
	Bytes  int64
	Handle [64]byte // if the kind is PlaceHandle
}

// validate returns the reason why the place is invalid, or "".
func (p *Place) validate() string {
	switch {
	case p.Kind != PlacePool && p.Kind != PlaceHandle:
		return fmt.Sprintf("kind %d", p.Kind)
	case p.Offset < 0 || p.Bytes < 0 || p.Offset > math.MaxInt64-p.Bytes:
		return fmt.Sprintf("%d bytes at %d", uint64(p.Bytes), uint64(p.Offset))
	case p.Kind == PlacePool && p.Handle != [64]byte{}:
		return "a chunk of a pool with a handle"
	case p.Kind == PlaceHandle && p.Arena != 0:
		return "a handle with an arena"
	}
	return ""
}

// extent returns how many bytes the elements of a tensor span, and the reason why the
// tensor is invalid, or "".
func extent(dtype codec.DType, dims, strides []int) (int64, string) {
	if !dtype.Valid() {
		return 0, fmt.Sprintf("unknown %v", dtype)
	}
	packed, reason := shape.Bytes(dtype.Size(), dims, 0)
	if reason != "" || strides == nil {
		return int64(packed), reason
	}
	if len(strides) != len(dims) {
		return 0, fmt.Sprintf("%d strides for %d dimensions", len(strides), len(dims))
	}
	if i := slices.IndexFunc(strides, func(s int) bool { return s < 0 }); i >= 0 {
		return 0, fmt.Sprintf("stride %d is negative", i)
	}
	if packed == 0 {
		return 0, ""
	}
	last := uint64(0) // the index of the last element
	for i, dim := range dims {
		over, step := bits.Mul64(uint64(dim-1), uint64(strides[i]))
		if last += step; over != 0 || step > math.MaxInt64 || last > math.MaxInt64 {
			return 0, "the strides overflow"
		}
	}
	over, span := bits.Mul64(last+1, uint64(dtype.Size()))
	if over != 0 || span > math.MaxInt64 {
		return 0, "the strides overflow"
	}
	return int64(span), ""
}

// validate checks a tensor from the program.
func (t *Tensor) validate() error {
	if t.Place != 0 {
		return t.validateExtent()
	}
	if t.Strides != nil {
		return t.shapeError("strides of a tensor in the payload")
	}
	return codec.Tensor{DType: t.DType, Shape: t.Shape, Data: t.Data}.Validate()
}

func (t *Tensor) validateExtent() error {
	if _, reason := extent(t.DType, t.Shape, t.Strides); reason != "" {
		return t.shapeError(reason)
	}
	return nil
}

func (t *Tensor) shapeError(reason string) error {
	return fmt.Errorf("codec: %w %v%v: %s", codec.ErrShape, t.DType, t.Shape, reason)
}

// contiguous reports whether the strides of a valid tensor are those of a contiguous one.
func contiguous(dims, strides []int) bool {
	if slices.Contains(dims, 0) {
		return true
	}
	step := 1
	for i, dim := range slices.Backward(dims) {
		if dim > 1 && strides[i] != step {
			return false
		}
		step *= dim
	}
	return true
}

// check returns the reason why a tensor cannot lie in its place, or "". Offset and
// Bytes are not negative.
func (t *Tensor) check(places []Place) string {
	if t.Place > len(places) {
		return fmt.Sprintf("it lies in place %d of %d", t.Place, len(places))
	}
	p := &places[t.Place-1]
	switch {
	case t.Bytes > p.Bytes || t.Offset > p.Bytes-t.Bytes:
		return fmt.Sprintf("%d bytes at %d in a place of %d", t.Bytes, t.Offset, p.Bytes)
	case (p.Offset+t.Offset)%int64(t.DType.Size()) != 0:
		// An access to a misaligned element destroys the GPU's whole context.
		return fmt.Sprintf("%v elements at %d in a place at %d", t.DType, t.Offset, p.Offset)
	}
	return ""
}
