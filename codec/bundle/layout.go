package bundle

import "github.com/omnibus-runtime/omnibus/codec"

// The bundle payload. All numbers are little endian, but for those in the tree,
// which is MessagePack.
//
//	offset  size      field
//	     0  4         magic "OBDL"
//	     4  1         version, 1
//	     5  3         reserved, 0
//	     8  4         places, at most MaxPlaces
//	    12  4         tensors, at most MaxTensors
//	    16  8         size of the table of tensors in bytes
//	    24  8         size of the tree in bytes
//	    32  128*n     table of places
//	     …            table of tensors
//	     …            tree
//	     …            zeros up to the next multiple of 64, and the data of the
//	                  first tensor with data in the payload; and so on
//
// A place is memory outside the payload:
//
//	 0  4         kind: 1 pool, 2 handle
//	 4  4         arena; 0 of a handle
//	 8  4         slot
//	12  4         generation
//	16  16        device, a UUID
//	32  16        pool
//	48  8         offset of the place, in the arena or from the handle's base
//	56  8         size of the place in bytes
//	64  64        handle; zeros of a pool
//
// A tensor's record has a variable length:
//
//	 0  1         dtype, see codec.DType
//	 1  1         ndim, 0 to codec.MaxDims
//	 2  1         1 if there are strides, else 0
//	 3  1         reserved, 0
//	 4  4         place: 0 the payload, n the nth of the table
//	 8  8         offset in the place, or in the payload
//	16  8         bytes from the first element to the end of the last
//	24  8*ndim    shape, outermost dimension first
//	 …  8*ndim    strides in elements, if there are any
//
// The tree is one value with tensors as extensions of type 7, whose data is the
// number of the tensor in the table, 4 bytes. The numbers are 0, 1, 2 and so on
// in the order of the tree: each tensor is in the tree once. Timestamps
// are extensions of type -1, as in MessagePack itself; there are no others.
//
// Data in the payload is contiguous, in the order of the table. The data of each tensor
// begins at the next multiple of 64 behind the bytes before it; a tensor without elements
// has no data there, and offset 0. With a payload that begins on a cache line, as
// those of a store do, data is aligned for every element type. The payload ends
// with the data of the last tensor, or with the tree; if there is a place,
// zeros may follow.
//
// Strides are given only of tensors that lie in a place and are not contiguous.
//
// So the value determines everything but the order of a map's entries, the encodings of
// numbers in the tree and the zeros behind a bundle with places; Open refuses all other
// bytes.
const (
	magic   = 'O' | 'B'<<8 | 'D'<<16 | 'L'<<24
	version = 1

	headerBytes    = 32
	placeBytes     = 128
	tensorBytes    = 24 // without shape and strides
	dimBytes       = 8
	dataAlignBytes = 64 // a cache line, and the widest vector register

	tensorExt = 7 // the extension type of a tensor in the tree

	// MaxPlaces is the largest number of places of a bundle: 4,096.
	MaxPlaces = 1 << 12
	// MaxTensors is the largest number of tensors of a bundle: 65,536.
	MaxTensors = 1 << 16
)

const name = "bundle"

func alignData(offset int) int { return (offset + dataAlignBytes - 1) &^ (dataAlignBytes - 1) }

// recordBytes returns the size of a tensor's record.
func recordBytes(ndim int, strides bool) int {
	if strides {
		return tensorBytes + 2*ndim*dimBytes
	}
	return tensorBytes + ndim*dimBytes
}

func malformed(offset int, reason string) error {
	return &codec.PayloadError{Serializer: name, Offset: offset, Reason: reason, Err: codec.ErrMalformed}
}

func beyond(offset int, reason string) error {
	return &codec.PayloadError{Serializer: name, Offset: offset, Reason: reason, Err: codec.ErrLimit}
}
