package codectest

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"time"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

// Describe returns the description of a value for a [Case]. A description by extra takes
// precedence.
func Describe(v any, extra func(v any) []any) []any {
	if extra != nil {
		if d := extra(v); d != nil {
			return d
		}
	}
	switch v := v.(type) {
	case nil:
		return []any{"nil"}
	case bool:
		return []any{"bool", v}
	case int64:
		return []any{"int", strconv.FormatInt(v, 10)}
	case uint64:
		return []any{"int", strconv.FormatUint(v, 10)}
	case float64:
		return []any{"float", hex.EncodeToString(binary.BigEndian.AppendUint64(nil, math.Float64bits(v)))}
	case string:
		return []any{"str", v}
	case []byte:
		return []any{"bytes", hex.EncodeToString(v)}
	case time.Time:
		return []any{"time", v.Unix(), v.Nanosecond() / 1000}
	case python.Slice:
		return []any{"slice", []any{v.Start, v.Stop, v.Step}}
	case codec.Tensor:
		return []any{"tensor", v.DType.String(), v.Shape, hex.EncodeToString(v.Data)}
	case python.NDArray:
		return []any{"ndarray", v.DType, v.Shape, hex.EncodeToString(v.Data)}
	case []any:
		elements := make([]any, len(v))
		for i, element := range v {
			elements[i] = Describe(element, extra)
		}
		return []any{"list", elements}
	case python.Dict:
		items := make([]any, len(v))
		for i, item := range v {
			items[i] = []any{Describe(item.Key, extra), Describe(item.Value, extra)}
		}
		return []any{"dict", items}
	default:
		panic(fmt.Sprintf("codectest: no description of %T", v))
	}
}

// Values generates values as Python programs send them, with the given
// generators beside those of plain values. The keys of a dict are unique.
func Values(special ...*rapid.Generator[any]) *rapid.Generator[any] {
	return values(4, special)
}

func values(depth int, special []*rapid.Generator[any]) *rapid.Generator[any] {
	kinds := append([]*rapid.Generator[any]{
		rapid.Just(any(nil)),
		rapid.Bool().AsAny(),
		integers(),
		rapid.Float64().AsAny(),
		Text().AsAny(),
		binaries(),
		rapid.Custom(drawTime).AsAny(),
	}, special...)
	if depth > 0 {
		element := rapid.Deferred(func() *rapid.Generator[any] { return values(depth-1, special) })
		kinds = append(kinds,
			rapid.SliceOfN(element, 0, 20).AsAny(),
			rapid.Custom(func(t *rapid.T) python.Dict { return drawDict(t, element) }).AsAny(),
		)
	}
	return rapid.OneOf(kinds...)
}

func integers() *rapid.Generator[any] {
	edges := []any{
		int64(0), int64(127), int64(128), int64(255), int64(256), int64(65535), int64(65536), int64(1<<32 - 1), int64(1 << 32),
		int64(math.MaxInt64), uint64(1 << 63), uint64(math.MaxUint64), int64(-1), int64(-32), int64(-33), int64(-128), int64(-129),
		int64(-32768), int64(-32769), int64(math.MinInt32), int64(math.MinInt32 - 1), int64(math.MinInt64),
	}
	return rapid.OneOf(rapid.Int64().AsAny(), rapid.SampledFrom(edges))
}

// Text generates text with lengths around those at which its encoding changes.
func Text() *rapid.Generator[string] {
	return rapid.OneOf(rapid.String(), rapid.Custom(func(t *rapid.T) string {
		return string(drawBytes(t, rapid.SampledFrom([]int{31, 32, 255, 256, 65535, 65536}).Draw(t, "length"), 0x7f))
	}))
}

func binaries() *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) []byte {
		return drawBytes(t, rapid.SampledFrom([]int{0, 1, 7, 255, 256, 65535, 65536}).Draw(t, "length"), 0xff)
	}).AsAny()
}

// drawBytes makes n bytes from one drawn seed.
func drawBytes(t *rapid.T, n int, mask byte) []byte {
	seed := rapid.Uint64().Draw(t, "seed")
	b := make([]byte, n)
	for i := range b {
		seed = seed*6364136223846793005 + 1442695040888963407
		b[i] = byte(seed>>56) & mask
	}
	return b
}

func drawTime(t *rapid.T) time.Time {
	// Python's datetimes have microseconds and end with the year 9999.
	seconds := rapid.Int64Range(-60_000_000_000, 250_000_000_000).Draw(t, "seconds")
	return time.Unix(seconds, 1000*rapid.Int64Range(0, 999_999).Draw(t, "microseconds")).UTC()
}

func drawDict(t *rapid.T, element *rapid.Generator[any]) python.Dict {
	key := rapid.OneOf(Text().AsAny(), Text().AsAny(), rapid.Int64().AsAny())
	keys := rapid.SliceOfNDistinct(key, 0, 18, rapid.ID[any]).Draw(t, "keys")
	dict := make(python.Dict, len(keys))
	for i, key := range keys {
		dict[i] = python.Item{Key: key, Value: element.Draw(t, "value")}
	}
	return dict
}

// Tensors generates tensors of every dtype: scalars, empty ones, ones around
// the sizes at which their encoding changes, and larger ones.
func Tensors() *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) codec.Tensor {
		dtype := codec.DType(rapid.IntRange(1, int(codec.DTypeComplex128)).Draw(t, "dtype"))
		dims := drawShape(t)
		n := elements(dims) * dtype.Size()
		mask := byte(0xff)
		if dtype == codec.DTypeBool {
			mask = 1
		}
		return codec.Tensor{DType: dtype, Shape: dims, Data: drawBytes(t, n, mask)}
	}).AsAny()
}

// ndarrayDTypes are NumPy dtypes of every kind and size, and some big endian.
var ndarrayDTypes = []string{
	"|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<f16", "<c8", "<c16",
	">i2", ">i4", ">f8", ">c16", "<M8[ns]", "<m8[us]", "|S1", "|S5", "<U3",
}

func ndarraySize(dtype string, dims []int) int {
	size, err := python.ItemSize(dtype)
	if err != nil {
		panic(err)
	}
	return elements(dims) * size
}

// NDArrays generates arrays like [Tensors], of more dtypes.
func NDArrays() *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) python.NDArray {
		dtype, dims := rapid.SampledFrom(ndarrayDTypes).Draw(t, "dtype"), drawShape(t)
		return python.NDArray{DType: dtype, Shape: dims, Data: drawBytes(t, ndarraySize(dtype, dims), 1)}
	}).AsAny()
}

// everyArray returns tensors and arrays of every dtype: a scalar, an empty one,
// a small and a large one.
func everyArray() (all []any) {
	for _, dims := range [][]int{{}, {0}, {2, 0, 3}, {3}, {100, 7}} {
		for dtype := codec.DTypeBool; dtype.Valid(); dtype++ {
			n := elements(dims) * dtype.Size()
			all = append(all, codec.Tensor{DType: dtype, Shape: dims, Data: bytes.Repeat([]byte{1}, n)})
		}
		for _, dtype := range ndarrayDTypes {
			all = append(all, python.NDArray{DType: dtype, Shape: dims, Data: bytes.Repeat([]byte{1}, ndarraySize(dtype, dims))})
		}
	}
	return all
}

// Slices generates slices.
func Slices() *rapid.Generator[any] {
	part := rapid.Ptr(rapid.IntRange(-300, 300), true)
	return rapid.Custom(func(t *rapid.T) python.Slice {
		return python.Slice{Start: part.Draw(t, "start"), Stop: part.Draw(t, "stop"), Step: part.Draw(t, "step")}
	}).AsAny()
}

func drawShape(t *rapid.T) []int {
	shapes := [][]int{{}, {0}, {3, 0, 2}, {1}, {63}, {64}, {2, 3}, {4, 64}, {1, 2, 3, 4}, {300, 70}}
	return rapid.SampledFrom(shapes).Draw(t, "shape")
}

// elements is the number of elements of a shape.
func elements(dims []int) int {
	n := 1
	for _, dim := range dims {
		n *= dim
	}
	return n
}
