package shape

import (
	"fmt"
	"math"
	"math/bits"
)

// MaxDims is the largest number of dimensions of an array.
const MaxDims = 32

// Bytes returns the size of an array with the given dimensions and elements
// of itemBytes, and the reason why the shape is invalid, or "". The sum of the size and
// reserve fits an int.
//
// The sum also fits without the dimensions that are 0: so strides and partial
// products computed from an accepted shape fit an int, in any order of the dimensions.
func Bytes(itemBytes int, dims []int, reserve int) (size int, reason string) {
	if len(dims) > MaxDims {
		return 0, fmt.Sprintf("%d dimensions, at most %d", len(dims), MaxDims)
	}
	product, empty := uint64(itemBytes), false
	for i, dim := range dims {
		if dim < 0 {
			return 0, fmt.Sprintf("dimension %d is negative", i)
		}
		if dim == 0 {
			empty = true
			continue
		}
		over, next := bits.Mul64(product, uint64(dim))
		if over != 0 || next > uint64(math.MaxInt-reserve) {
			return 0, "size overflows"
		}
		product = next
	}
	if empty {
		return 0, ""
	}
	return int(product), ""
}
