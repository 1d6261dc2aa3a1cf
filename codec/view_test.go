package codec_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
)

// TestViewTypes writes and reads elements of every type through views.
func TestViewTypes(t *testing.T) {
	testViewType(t, codec.DTypeBool, true, []byte{1})
	testViewType[int8](t, codec.DTypeInt8, -2, []byte{0xfe})
	testViewType[int16](t, codec.DTypeInt16, -2, []byte{0xfe, 0xff})
	testViewType[int32](t, codec.DTypeInt32, -2, []byte{0xfe, 0xff, 0xff, 0xff})
	testViewType[int64](t, codec.DTypeInt64, 1<<40, []byte{0, 0, 0, 0, 0, 1, 0, 0})
	testViewType[uint8](t, codec.DTypeUint8, 200, []byte{200})
	testViewType[uint16](t, codec.DTypeUint16, 0x1234, []byte{0x34, 0x12})
	testViewType[uint32](t, codec.DTypeUint32, 0x12345678, []byte{0x78, 0x56, 0x34, 0x12})
	testViewType[uint64](t, codec.DTypeUint64, 1<<63, []byte{0, 0, 0, 0, 0, 0, 0, 0x80})
	testViewType(t, codec.DTypeFloat16, codec.Float16(0x3c00), []byte{0x00, 0x3c})
	testViewType(t, codec.DTypeBFloat16, codec.BFloat16(0x3f80), []byte{0x80, 0x3f})
	testViewType[float32](t, codec.DTypeFloat32, 1, []byte{0, 0, 0x80, 0x3f})
	testViewType[float64](t, codec.DTypeFloat64, 1, []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f})
	testViewType[codec.Float8E4M3FN](t, codec.DTypeFloat8E4M3FN, 0x38, []byte{0x38})
	testViewType[codec.Float8E5M2](t, codec.DTypeFloat8E5M2, 0x3c, []byte{0x3c})
	testViewType[complex64](t, codec.DTypeComplex64, 1-2i, []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0})
	testViewType[complex128](t, codec.DTypeComplex128, 1-2i, []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0xc0})
}

func testViewType[T codec.Element](t *testing.T, dtype codec.DType, value T, wire []byte) {
	t.Run(dtype.String(), func(t *testing.T) {
		if got := codec.DTypeOf[T](); got != dtype {
			t.Fatalf("DTypeOf = %v", got)
		}
		_, tensor := newTensor(t, dtype, 2, 1)
		view, err := codec.View[T](tensor)
		if err != nil {
			t.Fatal(err)
		}
		view[1] = value
		if want := append(make([]byte, len(wire)), wire...); !bytes.Equal(tensor.Data, want) {
			t.Errorf("data % x, want % x", tensor.Data, want)
		}
		for _, other := range dtypes {
			if other == dtype {
				continue
			}
			_, tensor := newTensor(t, other, 2)
			_, err := codec.View[T](tensor)
			if !errors.Is(err, codec.ErrMismatch) || !strings.Contains(err.Error(), fmt.Sprintf("%v, not %v", other, dtype)) {
				t.Errorf("view of %v as %v: %v", other, dtype, err)
			}
		}
		empty, err := codec.View[T](codec.Tensor{DType: dtype, Shape: []int{0}})
		if err != nil || empty == nil || len(empty) != 0 {
			t.Errorf("view of no elements: %v, %v", empty, err)
		}
	})
}

func TestViewAlignment(t *testing.T) {
	memory := alignedBytes(64)
	for off := range 8 {
		data := memory[off : off+16]
		_, err := codec.View[uint16](codec.Tensor{DType: codec.DTypeUint16, Shape: []int{8}, Data: data})
		checkAlignment(t, err, off, alignOf[uint16]())
		_, err = codec.View[float64](codec.Tensor{DType: codec.DTypeFloat64, Shape: []int{2}, Data: data})
		checkAlignment(t, err, off, alignOf[float64]())
		odd := codec.Tensor{DType: codec.DTypeFloat64, Shape: []int{2}, Data: data}
		if _, err := codec.View[float64](odd.Clone()); err != nil {
			t.Errorf("clone of a misaligned tensor: %v", err)
		}
		if _, err := codec.View[int8](codec.Tensor{DType: codec.DTypeInt8, Shape: []int{16}, Data: data}); err != nil {
			t.Errorf("bytes need no alignment: %v", err)
		}
	}
}

func checkAlignment(t *testing.T, err error, off, align int) {
	t.Helper()
	if off%align == 0 {
		if err != nil {
			t.Errorf("offset %d: %v", off, err)
		}
		return
	}
	if text := fmt.Sprintf("needs %d bytes and is off by %d;", align, off%align); !errors.Is(err, codec.ErrAlignment) || !strings.Contains(err.Error(), text) {
		t.Errorf("offset %d: got %v, want an ErrAlignment that %s", off, err, text)
	}
}

func TestViewBool(t *testing.T) {
	data := []byte{0, 1, 1, 0, 2}
	if got, err := codec.View[bool](codec.Tensor{DType: codec.DTypeBool, Shape: []int{4}, Data: data[:4]}); err != nil {
		t.Error(err)
	} else if diff := cmp.Diff([]bool{false, true, true, false}, got); diff != "" {
		t.Error(diff)
	}
	var bad *codec.PayloadError
	_, err := codec.View[bool](codec.Tensor{DType: codec.DTypeBool, Shape: []int{5}, Data: data})
	if !errors.As(err, &bad) || !errors.Is(err, codec.ErrMalformed) || bad.Offset != 64+4 {
		t.Errorf("a bool of 2: %v", err)
	}
}

func TestViewInvalid(t *testing.T) {
	for name, tensor := range map[string]codec.Tensor{
		"short data":         {DType: codec.DTypeInt32, Shape: []int{2}, Data: make([]byte, 7)},
		"long data":          {DType: codec.DTypeInt32, Shape: []int{2}, Data: make([]byte, 9)},
		"no data":            {DType: codec.DTypeInt32, Shape: nil},
		"negative dimension": {DType: codec.DTypeInt32, Shape: []int{-1, -1}, Data: make([]byte, 4)},
	} {
		if _, err := codec.View[int32](tensor); !errors.Is(err, codec.ErrShape) {
			t.Errorf("%s: got %v, want an ErrShape", name, err)
		}
		if _, err := (codec.TensorSerializer{}).Append(nil, tensor); !errors.Is(err, codec.ErrShape) {
			t.Errorf("%s: encoded: %v", name, err)
		}
		if _, err := (codec.MsgpackSerializer{}).Append(nil, tensor); !errors.Is(err, codec.ErrShape) {
			t.Errorf("%s: encoded: %v", name, err)
		}
	}
}

func TestBigEndianHost(t *testing.T) {
	defer codec.SetBigEndian()()
	tensor := codec.Tensor{DType: codec.DTypeFloat32, Shape: []int{2}, Data: alignedBytes(8)}
	if _, err := codec.View[float32](tensor); !errors.Is(err, codec.ErrByteOrder) {
		t.Errorf("View: %v, want ErrByteOrder", err)
	}
	// One byte has no order.
	if _, err := codec.View[int8](codec.Tensor{DType: codec.DTypeInt8, Shape: []int{1}, Data: []byte{1}}); err != nil {
		t.Errorf("View of int8: %v", err)
	}
}
