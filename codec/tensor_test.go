package codec_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
)

var dtypes = []codec.DType{
	codec.DTypeBool,
	codec.DTypeInt8, codec.DTypeInt16, codec.DTypeInt32, codec.DTypeInt64,
	codec.DTypeUint8, codec.DTypeUint16, codec.DTypeUint32, codec.DTypeUint64,
	codec.DTypeFloat16, codec.DTypeBFloat16, codec.DTypeFloat32, codec.DTypeFloat64,
	codec.DTypeFloat8E4M3FN, codec.DTypeFloat8E5M2, codec.DTypeComplex64, codec.DTypeComplex128,
}

// newTensor returns a tensor in a payload of its own, aligned for every
// element type.
func newTensor(t testing.TB, dtype codec.DType, shape ...int) (payload []byte, _ codec.Tensor) {
	t.Helper()
	size, err := codec.TensorSize(dtype, shape...)
	if err != nil {
		t.Fatal(err)
	}
	payload = alignedBytes(size)
	tensor, err := codec.NewTensorIn(payload, dtype, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return payload, tensor
}

func TestDType(t *testing.T) {
	// The numbers are part of the payload: they must never change.
	wire := map[codec.DType]struct {
		number uint8
		name   string
		size   int
	}{
		codec.DTypeBool: {1, "bool", 1},
		codec.DTypeInt8: {2, "int8", 1}, codec.DTypeInt16: {3, "int16", 2}, codec.DTypeInt32: {4, "int32", 4}, codec.DTypeInt64: {5, "int64", 8},
		codec.DTypeUint8: {6, "uint8", 1}, codec.DTypeUint16: {7, "uint16", 2}, codec.DTypeUint32: {8, "uint32", 4}, codec.DTypeUint64: {9, "uint64", 8},
		codec.DTypeFloat16: {10, "float16", 2}, codec.DTypeBFloat16: {11, "bfloat16", 2}, codec.DTypeFloat32: {12, "float32", 4}, codec.DTypeFloat64: {13, "float64", 8},
		codec.DTypeFloat8E4M3FN: {14, "float8_e4m3fn", 1}, codec.DTypeFloat8E5M2: {15, "float8_e5m2", 1},
		codec.DTypeComplex64: {16, "complex64", 8}, codec.DTypeComplex128: {17, "complex128", 16},
	}
	for _, d := range dtypes {
		want := wire[d]
		if uint8(d) != want.number || d.String() != want.name || d.Size() != want.size || !d.Valid() {
			t.Errorf("%d %v has %d bytes, valid %v; want %+v", d, d, d.Size(), d.Valid(), want)
		}
		if got, err := codec.ParseDType(want.name); err != nil || got != d {
			t.Errorf("ParseDType(%q) = %v, %v", want.name, got, err)
		}
	}
	for _, d := range []codec.DType{0, 18, 255} {
		if d.Valid() || d.Size() != 0 || !strings.HasPrefix(d.String(), "dtype(") {
			t.Errorf("dtype %d: valid %v, %d bytes, named %v", uint8(d), d.Valid(), d.Size(), d)
		}
	}
	for _, name := range []string{"", "float", "Float32", "float32 ", "dtype(0)"} {
		if d, err := codec.ParseDType(name); !errors.Is(err, codec.ErrShape) {
			t.Errorf("ParseDType(%q) = %v, %v, want ErrShape", name, d, err)
		}
	}
}

// TestTensorLayout compares the payload with the picture in layout.go, byte for
// byte, in memory with other old content.
func TestTensorLayout(t *testing.T) {
	buf := bytes.Repeat([]byte{0xee}, 64+12)
	tensor, err := codec.NewTensorIn(buf, codec.DTypeInt16, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	if len(tensor.Data) != 12 || &tensor.Data[0] != &buf[64] {
		t.Fatalf("data has %d bytes and is not the end of the buffer", len(tensor.Data))
	}
	copy(tensor.Data, "\x01\x00\x02\x00\x03\x00\x04\x00\x05\x00\x06\x00")
	want := "OTEN\x01\x03\x02\x00" +
		"\x02\x00\x00\x00\x00\x00\x00\x00" + "\x03\x00\x00\x00\x00\x00\x00\x00" +
		strings.Repeat("\x00", 40) +
		"\x01\x00\x02\x00\x03\x00\x04\x00\x05\x00\x06\x00"
	if got := string(buf); got != want {
		t.Errorf("payload\n%q, want\n%q", got, want)
	}
	for ndim, want := range map[int]int{0: 64, 1: 64, 7: 64, 8: 128, 15: 128, 16: 192, 32: 320} {
		if got := codec.DataOffset(ndim); got != want {
			t.Errorf("data of %d dimensions begins at %d, want %d", ndim, got, want)
		}
	}
}

func TestTensorSize(t *testing.T) {
	const maxInt = math.MaxInt
	tests := []struct {
		name  string
		dtype codec.DType
		shape []int
		want  int // 0 is an ErrShape
	}{
		{"scalar", codec.DTypeFloat64, nil, 64 + 8},
		{"vector", codec.DTypeUint8, []int{3}, 64 + 3},
		{"no elements", codec.DTypeFloat32, []int{4, 0, 5}, 64},
		{"seven dimensions", codec.DTypeBool, []int{1, 1, 1, 1, 1, 1, 2}, 64 + 2},
		{"eight dimensions", codec.DTypeBool, []int{1, 1, 1, 1, 1, 1, 1, 2}, 128 + 2},
		{"most dimensions", codec.DTypeBool, make([]int, 32), 320},
		{"too many dimensions", codec.DTypeBool, make([]int, 33), 0},
		{"no dtype", 0, []int{1}, 0},
		{"unknown dtype", 18, []int{1}, 0},
		{"negative", codec.DTypeBool, []int{2, -1}, 0},
		{"negative without elements", codec.DTypeBool, []int{0, -1}, 0},
		{"smallest int", codec.DTypeBool, []int{math.MinInt}, 0},
		{"data beyond int", codec.DTypeFloat32, []int{maxInt/4 + 1}, 0},
		{"header beyond int", codec.DTypeBool, []int{maxInt}, 0},
		{"product wraps to zero", codec.DTypeBool, []int{1 << (bitsPerInt / 2), 1 << (bitsPerInt / 2)}, 0},
		{"product wraps to something small", codec.DTypeUint8, []int{maxInt, 2, 1<<(bitsPerInt-2) + 1}, 0},
		{"overflow hidden behind zero", codec.DTypeBool, []int{maxInt, maxInt, 0}, 0},
		{"overflow hidden by zero", codec.DTypeBool, []int{0, maxInt, maxInt}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := codec.TensorSize(tt.dtype, tt.shape...)
			if got != tt.want {
				t.Errorf("TensorSize = %d, want %d", got, tt.want)
			}
			if refused := tt.want == 0; refused != errors.Is(err, codec.ErrShape) {
				t.Errorf("error %v", err)
			}
			if tt.want == 0 {
				if _, err := codec.NewTensorIn(make([]byte, 64), tt.dtype, tt.shape...); !errors.Is(err, codec.ErrShape) {
					t.Errorf("NewTensorIn: %v, want ErrShape", err)
				}
			}
		})
	}
}

const bitsPerInt = 32 << (^uint(0) >> 63)

func TestNewTensorInSize(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 64 + 23, 64 + 25, 128} {
		_, err := codec.NewTensorIn(make([]byte, n), codec.DTypeFloat64, 3)
		var size *codec.SizeError
		if !errors.As(err, &size) || size.Got != n || size.Want != 64+24 {
			t.Errorf("%d bytes: got %v, want a SizeError", n, err)
		}
	}
}

func TestTensorRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dtype := rapid.SampledFrom(dtypes).Draw(t, "dtype")
		// More dimensions, and smaller ones, so that some are beyond the first line.
		shape := rapid.SliceOfN(rapid.IntRange(0, 3), 0, 5).Draw(t, "shape")
		ones := rapid.IntRange(0, codec.MaxDims-len(shape)).Draw(t, "ones")
		for range ones {
			shape = append(shape, 1)
		}
		size, err := codec.TensorSize(dtype, shape...)
		if err != nil {
			t.Fatal(err)
		}
		n := size - codec.DataOffset(len(shape))
		want := codec.Tensor{DType: dtype, Shape: shape, Data: rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "data")}
		elements := dtype.Size()
		for _, dim := range shape {
			elements *= dim
		}
		if elements != n {
			t.Fatalf("%v: elements take %d bytes, data %d", want, elements, n)
		}
		for _, s := range []codec.Serializer{codec.TensorSerializer{}, codec.MsgpackSerializer{}} {
			payload, err := s.Append(nil, &want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := codec.Decode[codec.Tensor](s, payload)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%s changed the tensor (-want +got):\n%s", s.Name(), diff)
			}
		}
	})
}

// TestZeroCopy proves by address that neither encoding in place nor decoding
// moves the data.
func TestZeroCopy(t *testing.T) {
	payload := alignedBytes(64 + 4*32 + 8)[:64+4*32] // with other memory behind it
	tensor, err := codec.NewTensorIn(payload, codec.DTypeFloat32, 4, 8)
	if err != nil {
		t.Fatal(err)
	}
	values, err := codec.View[float32](tensor)
	if err != nil {
		t.Fatal(err)
	}
	for i := range values {
		values[i] = float32(i)
	}

	decoded, err := codec.Decode[codec.Tensor](codec.TensorSerializer{}, payload)
	if err != nil {
		t.Fatal(err)
	}
	seen, err := codec.View[float32](decoded)
	if err != nil {
		t.Fatal(err)
	}
	if address(seen) != address(payload[64:]) {
		t.Error("the view is not in the payload")
	}
	if len(seen) != 32 || cap(seen) != 32 || seen[31] != 31 {
		t.Errorf("view has length %d, capacity %d, last element %v", len(seen), cap(seen), seen[31])
	}
	if cap(tensor.Data) != 4*32 || cap(decoded.Data) != 4*32 {
		t.Error("data has capacity beyond the payload")
	}

	clone := decoded.Clone()
	values[0], decoded.Shape[0] = -1, 99
	if seen[0] != -1 || math.Float32frombits(binary.LittleEndian.Uint32(decoded.Data)) != -1 {
		t.Error("a write is not seen in every view")
	}
	if got, err := codec.View[float32](clone); err != nil || got[0] != 0 || clone.Shape[0] != 4 {
		t.Errorf("the clone shares memory: %v %v, %v", clone, got, err)
	}
}

func TestViewAllocatesNothing(t *testing.T) {
	payload, tensor := newTensor(t, codec.DTypeFloat32, 4, 8)
	into := codec.TensorSerializer{}
	var sum float32
	tests := []struct {
		name string
		want float64
		do   func() error
	}{
		{"View", 0, func() error {
			values, err := codec.View[float32](tensor)
			sum += values[0]
			return err
		}},
		{"ViewTensor", 1, func() error { // the shape
			_, err := codec.ViewTensor(payload)
			return err
		}},
		{"EncodeInto", 0, func() error { return into.EncodeInto(payload, &tensor) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := testing.AllocsPerRun(100, func() {
				if err := tt.do(); err != nil {
					t.Fatal(err)
				}
			})
			if got != tt.want {
				t.Errorf("%v allocations, want %v", got, tt.want)
			}
		})
	}
}

func TestViewTensorMalformed(t *testing.T) {
	good, _ := newTensor(t, codec.DTypeFloat32, 2, 3)
	if _, err := codec.ViewTensor(good); err != nil {
		t.Fatal(err)
	}
	put := func(at int, b ...byte) func([]byte) []byte {
		return func(p []byte) []byte { copy(p[at:], b); return p }
	}
	dim := func(i int, v uint64) func([]byte) []byte {
		return func(p []byte) []byte { binary.LittleEndian.PutUint64(p[8+8*i:], v); return p }
	}
	tests := []struct {
		name   string
		damage func([]byte) []byte
		offset int
	}{
		{"empty", func(p []byte) []byte { return nil }, 0},
		{"shorter than the header", func(p []byte) []byte { return p[:63] }, 63},
		{"no data", func(p []byte) []byte { return p[:64] }, 64},
		{"data cut", func(p []byte) []byte { return p[:len(p)-1] }, 64},
		{"bytes after the data", func(p []byte) []byte { return append(p, 0) }, 64},
		{"magic", put(0, 'X'), 0},
		{"version 0", put(4, 0), 4},
		{"version 2", put(4, 2), 4},
		{"dtype 0", put(5, 0), 5},
		{"dtype 18", put(5, 18), 5},
		{"ndim 33", put(6, 33), 6},
		{"ndim 255", put(6, 255), 6},
		{"ndim beyond the header", put(6, 32), len(good)},
		{"reserved", put(7, 1), 7},
		{"padding, first byte", put(24, 1), 24},
		{"padding, last byte", put(63, 1), 63},
		{"shape too small", dim(0, 1), 64},
		{"shape too large", dim(0, 3), 64},
		{"dimension beyond int", dim(0, 1<<63), 8},
		{"all ones", dim(1, math.MaxUint64), 16},
		{"product overflows", dim(0, 1<<62), 64},
		{"product overflows to the right size", dim(0, 1<<62+2), 64},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := codec.ViewTensor(tt.damage(bytes.Clone(good)))
			var payload *codec.PayloadError
			if !errors.As(err, &payload) || !errors.Is(err, codec.ErrMalformed) {
				t.Fatalf("got %v, want a PayloadError", err)
			}
			if payload.Offset != tt.offset {
				t.Errorf("offset %d, want %d: %v", payload.Offset, tt.offset, err)
			}
			// The target keeps its value.
			kept := codec.Tensor{DType: codec.DTypeInt8}
			if err := (codec.TensorSerializer{}).Decode(tt.damage(bytes.Clone(good)), &kept); err == nil || kept.DType != codec.DTypeInt8 {
				t.Errorf("Decode = %v, target %v", err, kept)
			}
		})
	}
}

func FuzzViewTensor(f *testing.F) {
	for _, dtype := range dtypes {
		payload, _ := newTensor(f, dtype, 2, 3)
		f.Add(payload)
	}
	scalar, _ := newTensor(f, codec.DTypeFloat16)
	empty, _ := newTensor(f, codec.DTypeBool, 0, 7, 1, 1, 1, 1, 1, 1, 1)
	f.Add(scalar)
	f.Add(empty)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, payload []byte) {
		tensor, err := codec.ViewTensor(payload)
		if err != nil {
			if !errors.Is(err, codec.ErrMalformed) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if err := tensor.Validate(); err != nil {
			t.Fatalf("an invalid tensor was accepted: %v", err)
		}
		if n := len(tensor.Data); n > 0 && &tensor.Data[n-1] != &payload[len(payload)-1] {
			t.Fatal("data is not the end of the payload")
		}
		// A tensor has one encoding, so what was accepted is exactly that.
		again, err := codec.TensorSerializer{}.Append(nil, &tensor)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again, payload) {
			t.Fatalf("%v encodes to % x, but was accepted as % x", tensor, again, payload)
		}
	})
}
