package omni

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
)

// Image is a PIL image: pixels of one byte for each channel, row by row.
type Image struct {
	// Mode is PIL's name of what the channels mean, such as "RGB" or "L".
	Mode string
	// Shape is height, width and, unless there is only one, channels.
	Shape []int
	// Data holds the pixels. It may be a view of memory that belongs to
	// someone else, such as a payload.
	Data []byte
}

// Validate checks that there is a mode, that the shape is that of an image
// and that Data has the size that follows. The error wraps [codec.ErrShape].
func (m Image) Validate() error {
	if m.Mode == "" {
		return fmt.Errorf("%w: an image without a mode", codec.ErrShape)
	}
	if n := len(m.Shape); n != 2 && n != 3 {
		return fmt.Errorf("%w: an image with the shape %v; want height, width, and maybe channels", codec.ErrShape, m.Shape)
	}
	return m.Pixels().Validate()
}

// Pixels returns the image as a tensor that shares Shape and Data.
func (m Image) Pixels() codec.Tensor {
	return codec.Tensor{DType: codec.DTypeUint8, Shape: m.Shape, Data: m.Data}
}
