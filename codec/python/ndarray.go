package python

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/shape"
)

// NDArray is a NumPy array in row-major order. Unlike a [codec.Tensor] it can
// have elements without a Go type: big endian numbers, long doubles,
// dates, text.
type NDArray struct {
	// DType is NumPy's description of the elements, array.dtype.str: a byte
	// order "<", ">" or "|", a kind, and a size, such as "<f4" or "|b1".
	DType string
	// Shape holds the dimensions, outermost first. An empty shape is that of
	// a scalar, with one element; a dimension may be 0.
	Shape []int
	// Data holds the elements. It may be a view of memory that the NDArray does not own,
	// such as a payload.
	Data []byte
}

// String returns dtype and shape, such as "<f4[2 3]".
func (a NDArray) String() string { return fmt.Sprintf("%s%v", a.DType, a.Shape) }

// Validate checks that the dtype is one that NumPy writes, other than those
// of Python objects and of records, that no dimension is negative, and that
// Data has the size that follows from both. The error wraps [codec.ErrShape].
func (a NDArray) Validate() error {
	itemBytes, err := ItemSize(a.DType)
	if err != nil {
		return err
	}
	want, reason := shape.Bytes(itemBytes, a.Shape, 0)
	if reason == "" && len(a.Data) != want {
		reason = fmt.Sprintf("data has %d bytes, the shape needs %d", len(a.Data), want)
	}
	if reason != "" {
		return fmt.Errorf("%w %v: %s", codec.ErrShape, a, reason)
	}
	return nil
}

// Tensor returns the same array as a tensor that shares Shape and Data. The
// error wraps [codec.ErrShape] if a is not valid or no [codec.DType] stands
// for its elements.
func (a NDArray) Tensor() (codec.Tensor, error) {
	dtype := codec.DType(slices.Index(dtypes[:], a.DType))
	if !dtype.Valid() {
		if err := a.Validate(); err != nil {
			return codec.Tensor{}, err
		}
		return codec.Tensor{}, fmt.Errorf("%w: no tensor has elements of NumPy's %q", codec.ErrShape, a.DType)
	}
	t := codec.Tensor{DType: dtype, Shape: a.Shape, Data: a.Data}
	return t, t.Validate()
}

// FromTensor returns the same tensor as an array that shares Shape and Data.
// NumPy has no bfloat16 and no floats of 8 bits; those and a tensor that is not valid
// are a [codec.ErrShape].
func FromTensor(t codec.Tensor) (NDArray, error) {
	if err := t.Validate(); err != nil {
		return NDArray{}, err
	}
	name := dtypes[t.DType]
	if name == none {
		return NDArray{}, fmt.Errorf("%w: NumPy has no %v", codec.ErrShape, t.DType)
	}
	return NDArray{DType: name, Shape: t.Shape, Data: t.Data}, nil
}

// none stands for elements that NumPy does not have.
const none = "-"

// dtypes are NumPy's names of the tensor element types.
var dtypes = [codec.DTypeComplex128 + 1]string{
	0:               none,
	codec.DTypeBool: "|b1",
	codec.DTypeInt8: "|i1", codec.DTypeInt16: "<i2", codec.DTypeInt32: "<i4", codec.DTypeInt64: "<i8",
	codec.DTypeUint8: "|u1", codec.DTypeUint16: "<u2", codec.DTypeUint32: "<u4", codec.DTypeUint64: "<u8",
	codec.DTypeBFloat16: none,
	codec.DTypeFloat16:  "<f2", codec.DTypeFloat32: "<f4", codec.DTypeFloat64: "<f8",
	codec.DTypeFloat8E4M3FN: none, codec.DTypeFloat8E5M2: none,
	codec.DTypeComplex64: "<c8", codec.DTypeComplex128: "<c16",
}

// itemSizes are the sizes that elements of each kind can have. Those of text
// and bytes are not limited.
var itemSizes = map[byte][]int{
	'b': {1},
	'i': {1, 2, 4, 8}, 'u': {1, 2, 4, 8},
	'f': {2, 4, 8, 12, 16}, 'c': {8, 16, 24, 32}, // 12 and more: long double
	'm': {8}, 'M': {8}, // time differences and dates
	'S': nil, 'U': nil, // bytes and text
}

// dateUnit matches the unit at the end of a dtype: a count, if it is not 1, and
// the name of the unit.
var dateUnit = regexp.MustCompile(`^([02-9]|[1-9][0-9]{1,8})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]$`)

// maxItemBytes is NumPy's own limit, an int32.
const maxItemBytes = 1<<31 - 1

// ItemSize returns how many bytes an element of a NumPy dtype has. One that
// NumPy does not write, or whose elements are Python objects or records, is a
// [codec.ErrShape].
func ItemSize(dtype string) (int, error) {
	bad := func(reason string) (int, error) {
		if len(dtype) > 40 {
			dtype = dtype[:40]
		}
		return 0, fmt.Errorf("%w: NumPy dtype %q: %s", codec.ErrShape, dtype, reason)
	}
	if len(dtype) < 3 || strings.IndexByte("<>|", dtype[0]) < 0 {
		return bad(`want a byte order "<", ">" or "|", a kind and a size, such as "<f4"`)
	}
	kind, rest := dtype[1], dtype[2:]
	sizes, known := itemSizes[kind]
	if !known {
		return bad("elements of this kind cannot be sent")
	}
	if digits, unit, dated := strings.Cut(rest, "["); dated && (kind == 'm' || kind == 'M') {
		if !dateUnit.MatchString(unit) {
			return bad("no dates have that unit")
		}
		rest = digits // such as "<M8[ns]"
	}
	size, err := strconv.ParseUint(rest, 10, 31)
	if err != nil || rest[0] == '0' || rest[0] == '+' {
		return bad("the size is not a positive number")
	}
	itemBytes := int64(size)
	if kind == 'U' {
		itemBytes *= 4
	}
	if itemBytes > maxItemBytes || (sizes != nil && !slices.Contains(sizes, int(itemBytes))) {
		return bad("no element of this kind has that size")
	}
	if ordered := itemBytes > 1 && kind != 'S'; ordered == (dtype[0] == '|') {
		return bad(`the byte order is "|" for elements of one byte and for bytes, and only for those`)
	}
	return int(itemBytes), nil
}
