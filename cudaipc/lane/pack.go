package lane

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

const (
	// maxPackOps bounds the copies that pack one strided tensor.
	maxPackOps = 1 << 16
	// maxPitch is the largest pitch that all drivers accept.
	maxPitch = 1<<31 - 1
)

// axis is one dimension of a strided tensor: n steps of stride bytes.
type axis struct{ n, stride int64 }

// pack appends the fewest copies that put a strided tensor at dst in row-major order, without gaps.
// Strides are in elements.
func pack(ops []cudaipc.Op, dst, src cudaipc.Ptr, itemBytes int64, shape, strides []int) ([]cudaipc.Op, error) {
	axes, err := merge(itemBytes, shape, strides)
	if err != nil || axes == nil {
		return ops, err
	}
	// The innermost run of bytes, and the rows of them that one operation takes.
	width := itemBytes
	if last := axes[len(axes)-1]; last.stride == itemBytes {
		width *= last.n
		axes = axes[:len(axes)-1]
	}
	row := axis{n: 1, stride: width}
	if n := len(axes); n > 0 && axes[n-1].stride >= width && axes[n-1].stride <= maxPitch {
		row = axes[n-1]
		axes = axes[:n-1]
	}
	count := int64(1)
	for _, a := range axes {
		if count *= a.n; count > maxPackOps {
			return ops, fmt.Errorf("%w: a tensor of shape %v with strides %v takes more than %d copies: make it contiguous first", cudaipc.ErrInvalid, shape, strides, maxPackOps)
		}
	}
	for i := range count {
		from, rest := src, i
		for _, a := range slices.Backward(axes) {
			from += cudaipc.Ptr(rest % a.n * a.stride)
			rest /= a.n
		}
		to := dst + cudaipc.Ptr(i*row.n*width)
		if row.n == 1 {
			ops = append(ops, cudaipc.Op{Kind: cudaipc.OpCopy, Dst: to, Src: from, Bytes: width})
		} else {
			ops = append(ops, cudaipc.Op{Kind: cudaipc.OpCopy2D, Dst: to, DstPitch: width, Src: from, SrcPitch: row.stride, Bytes: width, Rows: row.n})
		}
	}
	return ops, nil
}

// merge returns the relevant dimensions, outermost first: those of one element are dropped, and
// neighbours that are contiguous are merged. It returns no axes for a tensor without elements.
func merge(itemBytes int64, shape, strides []int) ([]axis, error) {
	if len(shape) != len(strides) {
		return nil, fmt.Errorf("%w: %d strides for %d dimensions", cudaipc.ErrInvalid, len(strides), len(shape))
	}
	axes := []axis{{n: 1, stride: itemBytes}}
	for i, n := range shape {
		if n < 0 || strides[i] < 0 {
			return nil, fmt.Errorf("%w: shape %v with strides %v: neither may be negative", cudaipc.ErrInvalid, shape, strides)
		}
		if n == 0 {
			return nil, nil
		}
		if n == 1 {
			continue
		}
		a := axis{n: int64(n), stride: int64(strides[i]) * itemBytes}
		if last := &axes[len(axes)-1]; last.n == 1 {
			*last = a
		} else if last.stride == a.n*a.stride {
			last.n, last.stride = last.n*a.n, a.stride
		} else {
			axes = append(axes, a)
		}
	}
	return axes, nil
}

// extent returns the bytes from the first element to the end of the last. Nil strides are those of
// a contiguous tensor. It returns false for a size beyond any memory.
func extent(itemBytes int64, shape, strides []int) (sizeBytes int64, ok bool) {
	elements, last := uint64(1), uint64(0)
	for i, n := range shape {
		if n < 0 || len(strides) > 0 && strides[i] < 0 {
			return 0, false
		}
		if n == 0 {
			return 0, true
		}
		hi, product := bits.Mul64(elements, uint64(n))
		if hi != 0 {
			return 0, false
		}
		elements = product
		if strides == nil {
			continue
		}
		hi, reach := bits.Mul64(uint64(n-1), uint64(strides[i]))
		if last += reach; hi != 0 || last < reach {
			return 0, false
		}
	}
	if strides != nil {
		elements = last + 1
	}
	hi, total := bits.Mul64(elements, uint64(itemBytes))
	return int64(total), hi == 0 && total < 1<<62
}
