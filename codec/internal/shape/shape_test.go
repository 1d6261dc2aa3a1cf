package shape_test

import (
	"math"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec/internal/shape"
)

func TestBytes(t *testing.T) {
	const half = math.MaxInt/2 + 1
	for _, tt := range []struct {
		item    int
		dims    []int
		reserve int
		size    int
		reason  string
	}{
		{4, nil, 0, 4, ""},
		{4, []int{2, 3}, 0, 24, ""},
		{4, []int{2, 0, 3}, 0, 0, ""},
		{1, []int{math.MaxInt}, 0, math.MaxInt, ""},
		{1, []int{math.MaxInt}, 1, 0, "size overflows"},
		{2, []int{half}, 0, 0, "size overflows"},
		{1, []int{half, half, half}, 0, 0, "size overflows"},
		{1, []int{0, half, half}, 0, 0, "size overflows"},
		{1, []int{1, -1}, 0, 0, "dimension 1 is negative"},
		{1, []int{-1, -1}, 0, 0, "dimension 0 is negative"},
		{1, make([]int, 33), 0, 0, "33 dimensions, at most 32"},
		{1, make([]int, 32), 0, 0, ""},
	} {
		if size, reason := shape.Bytes(tt.item, tt.dims, tt.reserve); size != tt.size || reason != tt.reason {
			t.Errorf("Bytes(%d, %v, %d) = %d, %q; want %d, %q", tt.item, tt.dims, tt.reserve, size, reason, tt.size, tt.reason)
		}
	}
}
