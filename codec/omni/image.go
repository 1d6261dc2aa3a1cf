package omni

import (
	"fmt"
	"maps"
	"slices"

	"github.com/omnibus-runtime/omnibus/codec"
)

// channels is the number of channels in PIL's modes with one byte for each channel. The
// format carries only these modes.
var channels = map[string]int{
	"L": 1, "P": 1, "LA": 2, "PA": 2, "La": 2, "RGB": 3, "YCbCr": 3, "LAB": 3, "HSV": 3,
	"RGBA": 4, "RGBX": 4, "RGBa": 4, "CMYK": 4,
}

// Image is a PIL image: pixels of one byte for each channel, row by row.
type Image struct {
	// Mode is PIL's name of the meaning of the channels, such as "RGB" or "L", with one byte
	// for each channel.
	Mode string
	// Shape is height, width and, unless there is only one, channels.
	Shape []int
	// Data holds the pixels. It may be a view of memory that the Image does not own, such
	// as a payload.
	Data []byte
}

// Validate checks that the mode has one byte for each channel, that the shape fits the
// mode, and that Data has the size that follows. The error wraps [codec.ErrShape].
func (m Image) Validate() error {
	n, known := channels[m.Mode]
	if !known {
		return fmt.Errorf("%w: an image of mode %.40q; want one of %v", codec.ErrShape, m.Mode, slices.Sorted(maps.Keys(channels)))
	}
	if n == 1 && len(m.Shape) != 2 || n > 1 && (len(m.Shape) != 3 || m.Shape[2] != n) {
		return fmt.Errorf("%w: an image of mode %s and shape %v; want height, width, and channels if there are several", codec.ErrShape, m.Mode, m.Shape)
	}
	return m.Pixels().Validate()
}

// Pixels returns the image as a tensor that shares Shape and Data.
func (m Image) Pixels() codec.Tensor {
	return codec.Tensor{DType: codec.DTypeUint8, Shape: m.Shape, Data: m.Data}
}
