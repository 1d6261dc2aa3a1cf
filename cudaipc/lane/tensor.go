package lane

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// Tensor is a dense array of numbers in the memory of a GPU, at any depth of a value that is sent
// or was received.
type Tensor struct {
	DType codec.DType
	// Shape holds the dimensions, outermost first.
	Shape []int
	// Strides holds the distance of neighbours along each dimension, in elements; nil for
	// contiguous, in row-major order. A received tensor has strides only if it is a view of its
	// producer's own buffer.
	Strides []int
	// Device is the GPU of the memory. In a value that is sent, the zero UUID is the lane's first.
	Device cudaipc.UUID
	// Ptr is the address of the first element.
	Ptr cudaipc.Ptr
}

var _ bundle.Source = (*Tensor)(nil)

// TensorType implements bundle.Source.
func (t *Tensor) TensorType() (codec.DType, []int) { return t.DType, t.Shape }

// Bytes returns the size of the elements without gaps.
func (t *Tensor) Bytes() int64 {
	sizeBytes, _ := extent(int64(t.DType.Size()), t.Shape, nil)
	return sizeBytes
}

// String describes the tensor, such as "float32[2 3] on GPU-…", with the GPU if it is set.
func (t *Tensor) String() string {
	what := fmt.Sprintf("%v%v", t.DType, t.Shape)
	if t.Device != (cudaipc.UUID{}) {
		what += " on " + t.Device.String()
	}
	return what
}

// strides returns Strides, or those of a contiguous tensor.
func (t *Tensor) strides() []int {
	if t.Strides != nil {
		return t.Strides
	}
	return rowMajor(t.Shape)
}

// rowMajor returns the strides of a contiguous tensor.
func rowMajor(shape []int) []int {
	s := make([]int, len(shape))
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		s[i] = step
		step *= max(shape[i], 1)
	}
	return s
}
