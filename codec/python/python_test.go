package python_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

func TestItemSize(t *testing.T) {
	for dtype, want := range map[string]int{
		"|b1": 1, "|i1": 1, "<i2": 2, ">u4": 4, "<i8": 8, "<f2": 2, "<f16": 16, "<c8": 8, "<c32": 32,
		"<M8": 8, "<M8[ns]": 8, "<m8[25s]": 8, "|S1": 1, "|S300": 300, "<U3": 12, "<U536870911": 1<<31 - 4,
	} {
		if got, err := python.ItemSize(dtype); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", dtype, got, err, want)
		}
	}
	for _, dtype := range []string{
		"", "f4", "<f", "=f4", "float32", "<f3", "<b2", "<i16", "|O", "|O8", "|V8", "<V2", "|S0", "|S", "<U0", "<U536870912", "|S2147483648",
		"<i+4", "<i04", "<i4 ", "<M4", "<M8[", "<f4[ns]", "<M[ns]", "-", "|f4", "|U1", "<S3", "<i1", ">b1",
		"<M8[]", "<M8[xx]", "<M8[1s]", "<M8[s/2]", "<M8[generic]", "<m8[99999999999s]", "<i99999999999999999999",
	} {
		if got, err := python.ItemSize(dtype); !errors.Is(err, codec.ErrShape) {
			t.Errorf("%q: got %d, %v; want ErrShape", dtype, got, err)
		}
	}
}

// TestTensor converts every dtype to NumPy's and back.
func TestTensor(t *testing.T) {
	for dtype := codec.DTypeBool; dtype.Valid(); dtype++ {
		tensor := codec.Tensor{DType: dtype, Shape: []int{2, 1}, Data: make([]byte, 2*dtype.Size())}
		array, err := python.FromTensor(tensor)
		if dtype == codec.DTypeBFloat16 || dtype == codec.DTypeFloat8E4M3FN || dtype == codec.DTypeFloat8E5M2 {
			if !errors.Is(err, codec.ErrShape) {
				t.Errorf("%v: %v, %v", dtype, array, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := array.Validate(); err != nil {
			t.Error(err)
		}
		back, err := array.Tensor()
		if diff := cmp.Diff(tensor, back); err != nil || diff != "" {
			t.Errorf("%v: %v %s", dtype, err, diff)
		}
	}
}

func TestNoTensor(t *testing.T) {
	for _, a := range []python.NDArray{
		{},
		{DType: "-", Shape: []int{0}},
		{DType: ">i4", Shape: []int{0}},
		{DType: "<c32", Shape: []int{0}},
		{DType: "<i4", Shape: []int{1}},
		{DType: "<i4", Shape: []int{-1}},
	} {
		if got, err := a.Tensor(); !errors.Is(err, codec.ErrShape) {
			t.Errorf("%v: got %v, %v; want ErrShape", a, got, err)
		}
	}
	if _, err := python.FromTensor(codec.Tensor{}); !errors.Is(err, codec.ErrShape) {
		t.Errorf("got %v, want ErrShape", err)
	}
}

func TestDictGet(t *testing.T) {
	d := python.Dict{{Key: "a", Value: 1}, {Key: int64(1), Value: 2}, {Key: "a", Value: 3}}
	if v, ok := d.Get("a"); !ok || v != 3 {
		t.Errorf("got %v, %v, want the last", v, ok)
	}
	if v, ok := d.Get("1"); ok {
		t.Errorf("a number was found by its text: %v", v)
	}
}
