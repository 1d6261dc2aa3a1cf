package codec

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/omnibus-runtime/omnibus/codec/internal/pack"
	"github.com/omnibus-runtime/omnibus/codec/internal/shape"
)

// Tensor is a dense array of numbers in row-major order. Its three fields
// must agree, see [Tensor.Validate]. Copies of a Tensor share Shape and
// Data.
type Tensor struct {
	DType DType
	// Shape holds the dimensions, outermost first. An empty shape is that of
	// a scalar, with one element; a dimension may be 0.
	Shape []int
	// Data holds the elements, little endian. It may be a view of memory that
	// the Tensor does not own, such as a payload.
	Data []byte
}

// String returns dtype and shape, such as "float32[2 3]".
func (t Tensor) String() string { return fmt.Sprintf("%v%v", t.DType, t.Shape) }

// Validate checks that the dtype is known, that the shape has at most
// [MaxDims] dimensions, none negative, and that Data has the size that
// follows from both. The error is an [ErrShape].
func (t Tensor) Validate() error {
	want, err := dataSize(t.DType, t.Shape)
	if err != nil {
		return err
	}
	if len(t.Data) != want {
		return t.shapeError(fmt.Sprintf("data has %d bytes, the shape needs %d", len(t.Data), want))
	}
	return nil
}

func (t Tensor) shapeError(reason string) error {
	return fmt.Errorf("codec: %w %v: %s", ErrShape, t, reason)
}

// Clone returns a copy that shares nothing with t, with data aligned for
// every element type. Use it to keep a tensor longer than the payload it
// is a view of.
func (t Tensor) Clone() Tensor {
	data := makeAligned(len(t.Data))
	pack.Copy(data, t.Data)
	return Tensor{DType: t.DType, Shape: slices.Clone(t.Shape), Data: data}
}

// TensorSize returns the size in bytes of the payload of a tensor. The error
// is an [ErrShape].
func TensorSize(dtype DType, shape ...int) (int, error) {
	size, err := dataSize(dtype, shape)
	if err != nil {
		return 0, err
	}
	return dataOffset(len(shape)) + size, nil
}

// NewTensorIn lays out a tensor in buf, which must have exactly the size that
// [TensorSize] returns. It writes the header and returns the tensor, whose
// Data is the rest of buf, to be filled in place. Data still holds the old bytes of
// buf: the caller fills all of it.
func NewTensorIn(buf []byte, dtype DType, shape ...int) (Tensor, error) {
	size, err := TensorSize(dtype, shape...)
	if err != nil {
		return Tensor{}, err
	}
	if len(buf) != size {
		return Tensor{}, &SizeError{Serializer: tensorName, Got: len(buf), Want: size}
	}
	data := putHeader(buf, dtype, shape)
	return Tensor{DType: dtype, Shape: slices.Clone(shape), Data: buf[data:size:size]}, nil
}

// putHeader writes the header of a valid tensor and returns its size, which
// is where the data begins.
func putHeader(buf []byte, dtype DType, shape []int) int {
	prefix := tensorPrefix{magic: tensorMagic, version: tensorVersion, dtype: dtype, ndim: uint8(len(shape))}
	binary.LittleEndian.PutUint64(buf, prefix.pack())
	at := prefixSizeBytes
	for _, dim := range shape {
		binary.LittleEndian.PutUint64(buf[at:], uint64(dim))
		at += dimSizeBytes
	}
	data := dataOffset(len(shape))
	clear(buf[at:data]) // reserved memory holds old bytes
	return data
}

// ViewTensor returns the tensor in payload. Data is a view of the payload;
// only the shape is copied. Bytes that [NewTensorIn] would not have written
// are a [*PayloadError].
func ViewTensor(payload []byte) (Tensor, error) {
	if len(payload) < dataOffset(0) {
		return Tensor{}, tensorPayloadError(len(payload), "ends within the header")
	}
	// Another process may still write to the payload, so every field is read
	// once, and the checked value is used.
	prefix := unpackPrefix(binary.LittleEndian.Uint64(payload))
	if err := prefix.validate(); err != nil {
		return Tensor{}, err
	}
	ndim := int(prefix.ndim)
	data := dataOffset(ndim)
	if len(payload) < data {
		return Tensor{}, tensorPayloadError(len(payload), fmt.Sprintf("ends within the header of %d dimensions", ndim))
	}
	shape, err := readShape(payload[:data], ndim)
	if err != nil {
		return Tensor{}, err
	}
	t := Tensor{DType: prefix.dtype, Shape: shape, Data: payload[data:len(payload):len(payload)]}
	if err := t.Validate(); err != nil {
		return Tensor{}, tensorPayloadError(data, err.Error())
	}
	return t, nil
}

func (p tensorPrefix) validate() error {
	switch {
	case p.magic != tensorMagic:
		return tensorPayloadError(0, fmt.Sprintf("magic %#x is not that of a tensor", p.magic))
	case p.version != tensorVersion:
		return tensorPayloadError(4, fmt.Sprintf("version %d, want %d", p.version, tensorVersion))
	case !p.dtype.Valid():
		return tensorPayloadError(5, fmt.Sprintf("unknown %v", p.dtype))
	case p.ndim > MaxDims:
		return tensorPayloadError(6, fmt.Sprintf("%d dimensions, at most %d", p.ndim, MaxDims))
	case p.reserved != 0:
		return tensorPayloadError(7, "reserved byte is not zero")
	}
	return nil
}

// readShape reads the shape from a whole header, and checks that the padding behind it is
// zero.
func readShape(header []byte, ndim int) ([]int, error) {
	shape := make([]int, ndim)
	at := prefixSizeBytes
	for i := range shape {
		dim := binary.LittleEndian.Uint64(header[at:])
		if dim > math.MaxInt {
			return nil, tensorPayloadError(at, fmt.Sprintf("dimension %d is %d", i, dim))
		}
		shape[i] = int(dim)
		at += dimSizeBytes
	}
	for i, b := range header[at:] {
		if b != 0 {
			return nil, tensorPayloadError(at+i, "padding is not zero")
		}
	}
	return shape, nil
}

func tensorPayloadError(offset int, reason string) error {
	return &PayloadError{Serializer: tensorName, Offset: offset, Reason: reason, Err: ErrMalformed}
}

// dataSize returns the size of a tensor's data in bytes. Header and data
// together fit an int.
func dataSize(dtype DType, dims []int) (int, error) {
	t := Tensor{DType: dtype, Shape: dims}
	if !dtype.Valid() {
		return 0, t.shapeError("unknown dtype")
	}
	size, reason := shape.Bytes(dtype.Size(), dims, dataOffset(MaxDims))
	if reason != "" {
		return 0, t.shapeError(reason)
	}
	return size, nil
}

// View returns the elements of t. The result is a view of t.Data: nothing is
// copied or allocated, and writes go both ways. It has no capacity beyond its
// length.
//
// T must match the dtype, or the error is an [ErrMismatch]. Data at an address
// that T forbids is an [ErrAlignment], a tensor that is not valid an
// [ErrShape], and a host that is big endian [ErrByteOrder].
//
// View[bool] checks every byte, because a Go bool that is neither 0 nor 1
// breaks assumptions of the compiler; such a byte is an
// [ErrMalformed]. If another process might change the bytes afterwards,
// use Data itself.
func View[T Element](t Tensor) ([]T, error) {
	dtype := DTypeOf[T]()
	if t.DType != dtype {
		return nil, fmt.Errorf("codec: tensor: %w: elements are %v, not %v", ErrMismatch, t.DType, dtype)
	}
	if err := t.Validate(); err != nil {
		return nil, err
	}
	if err := checkByteOrder(dtype); err != nil {
		return nil, err
	}
	if dtype == DTypeBool {
		if i := slices.IndexFunc(t.Data, func(b byte) bool { return b > 1 }); i >= 0 {
			return nil, tensorPayloadError(dataOffset(len(t.Shape))+i, "a bool is neither 0 nor 1")
		}
	}
	return elementsOf[T](t.Data)
}

// hostLittleEndian is a variable for tests only.
var hostLittleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// checkByteOrder refuses views that would show swapped bytes.
func checkByteOrder(dtype DType) error {
	if hostLittleEndian || dtype.Size() == 1 {
		return nil
	}
	return fmt.Errorf("codec: tensor: view of %v: %w: tensor data is little endian; decode Data with encoding/binary", dtype, ErrByteOrder)
}
