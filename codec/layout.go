package codec

import "github.com/omnibus-runtime/omnibus/codec/internal/shape"

// The tensor payload. All numbers are little endian.
//
//	offset  size     field
//	     0  4        magic "OTEN"
//	     4  1        version, 1
//	     5  1        dtype, see DType
//	     6  1        ndim, 0 to MaxDims
//	     7  1        reserved, 0
//	     8  8*ndim   shape, outermost dimension first
//	     …           zeros up to the next multiple of 64
//	  data  …        elements in row-major order, to the end of the payload
//
// Data begins at byte 64 for up to seven dimensions. With a payload that
// begins on a cache line, as those of a store do, data is aligned for every
// element type, and for the vector loads of code that computes on it.
//
// A tensor has exactly one encoding: padding is zero, and nothing follows the
// data. ViewTensor refuses everything else.
const (
	tensorMagic   = 'O' | 'T'<<8 | 'E'<<16 | 'N'<<24
	tensorVersion = 1

	prefixSizeBytes = 8  // magic to reserved: read and written as one word
	dimSizeBytes    = 8  // one dimension of the shape
	dataAlignBytes  = 64 // a cache line, and the widest vector register

	// MaxDims is the largest number of dimensions of a tensor: 32.
	MaxDims = shape.MaxDims
)

// tensorPrefix is the first word of a tensor payload, taken apart.
type tensorPrefix struct {
	magic    uint32
	version  uint8
	dtype    DType
	ndim     uint8
	reserved uint8
}

func (p tensorPrefix) pack() uint64 {
	return uint64(p.magic) | uint64(p.version)<<32 | uint64(p.dtype)<<40 |
		uint64(p.ndim)<<48 | uint64(p.reserved)<<56
}

func unpackPrefix(w uint64) tensorPrefix {
	return tensorPrefix{
		magic:    uint32(w),
		version:  uint8(w >> 32),
		dtype:    DType(w >> 40),
		ndim:     uint8(w >> 48),
		reserved: uint8(w >> 56),
	}
}

// dataOffset returns where the data of a tensor of ndim dimensions begins.
func dataOffset(ndim int) int {
	header := prefixSizeBytes + ndim*dimSizeBytes
	return (header + dataAlignBytes - 1) &^ (dataAlignBytes - 1)
}
