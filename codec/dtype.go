package codec

import (
	"fmt"
	"slices"
)

// DType is the type of a tensor's elements. The numbers are part of the
// tensor payload and never change meaning. The zero value is none.
type DType uint8

// The element types.
const (
	DTypeBool DType = iota + 1 // one byte, 0 or 1
	DTypeInt8
	DTypeInt16
	DTypeInt32
	DTypeInt64
	DTypeUint8
	DTypeUint16
	DTypeUint32
	DTypeUint64
	DTypeFloat16
	DTypeBFloat16
	DTypeFloat32
	DTypeFloat64
	DTypeFloat8E4M3FN
	DTypeFloat8E5M2
	DTypeComplex64  // two float32, the real part first
	DTypeComplex128 // two float64

	numDTypes = iota + 1 // with the zero value
)

// The names are those that NumPy and PyTorch use.
var dtypeNames = [numDTypes]string{
	DTypeBool: "bool",
	DTypeInt8: "int8", DTypeInt16: "int16", DTypeInt32: "int32", DTypeInt64: "int64",
	DTypeUint8: "uint8", DTypeUint16: "uint16", DTypeUint32: "uint32", DTypeUint64: "uint64",
	DTypeFloat16: "float16", DTypeBFloat16: "bfloat16", DTypeFloat32: "float32", DTypeFloat64: "float64",
	DTypeFloat8E4M3FN: "float8_e4m3fn", DTypeFloat8E5M2: "float8_e5m2", DTypeComplex64: "complex64", DTypeComplex128: "complex128",
}

var dtypeSizes = [numDTypes]int{
	DTypeBool: 1,
	DTypeInt8: 1, DTypeInt16: 2, DTypeInt32: 4, DTypeInt64: 8,
	DTypeUint8: 1, DTypeUint16: 2, DTypeUint32: 4, DTypeUint64: 8,
	DTypeFloat16: 2, DTypeBFloat16: 2, DTypeFloat32: 4, DTypeFloat64: 8,
	DTypeFloat8E4M3FN: 1, DTypeFloat8E5M2: 1, DTypeComplex64: 8, DTypeComplex128: 16,
}

// Valid reports whether d is one of the element types.
func (d DType) Valid() bool { return d != 0 && d < numDTypes }

// Size returns the size of an element in bytes, and 0 if d is not valid.
func (d DType) Size() int {
	if !d.Valid() {
		return 0
	}
	return dtypeSizes[d]
}

// String returns the name that NumPy and PyTorch use, such as "float32".
func (d DType) String() string {
	if !d.Valid() {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypeNames[d]
}

// ParseDType is the inverse of [DType.String]. The error wraps [ErrShape].
func ParseDType(name string) (DType, error) {
	names := dtypeNames[1:]
	if i := slices.Index(names, name); i >= 0 {
		return DType(i + 1), nil
	}
	return 0, fmt.Errorf("codec: %w: no dtype %q; known are %v", ErrShape, name, names)
}

// Element is a Go type whose memory is that of a tensor element.
type Element interface {
	bool |
		int8 | int16 | int32 | int64 |
		uint8 | uint16 | uint32 | uint64 |
		Float16 | BFloat16 | float32 | float64 |
		Float8E4M3FN | Float8E5M2 | complex64 | complex128
}

// DTypeOf returns the element type that T stands for.
func DTypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case bool:
		return DTypeBool
	case int8:
		return DTypeInt8
	case int16:
		return DTypeInt16
	case int32:
		return DTypeInt32
	case int64:
		return DTypeInt64
	case uint8:
		return DTypeUint8
	case uint16:
		return DTypeUint16
	case uint32:
		return DTypeUint32
	case uint64:
		return DTypeUint64
	case Float16:
		return DTypeFloat16
	case BFloat16:
		return DTypeBFloat16
	case float32:
		return DTypeFloat32
	case Float8E4M3FN:
		return DTypeFloat8E4M3FN
	case Float8E5M2:
		return DTypeFloat8E5M2
	case complex64:
		return DTypeComplex64
	case complex128:
		return DTypeComplex128
	default:
		return DTypeFloat64
	}
}
