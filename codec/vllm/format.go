package vllm

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/msgspec"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

const name = "vllm"

// rawExt is vLLM's extension for bytes.
const rawExt = 3

// Raw is the data of a small tensor or array where no type says so.
type Raw []byte

// format is what vLLM adds to msgspec, for one value.
type format struct {
	threshold int      // for encoding
	buffers   [][]byte // those of the value; the first is the one at work
}

var _ msgspec.Format = (*format)(nil)

var rawType = reflect.TypeFor[Raw]()

func (*format) Name() string { return name }

func (*format) Special(t reflect.Type) bool { return t == rawType }

// Encode writes tensors and arrays as lists of dtype, shape and data.
func (f *format) Encode(e *msgspec.Encoder, v any) error {
	switch v := v.(type) {
	case codec.Tensor:
		if err := v.Validate(); err != nil {
			return err
		}
		small := len(v.Data) < f.threshold
		return f.encodeArray(e, v.DType.String(), v.Shape, v.Data, small)
	case python.NDArray:
		if err := v.Validate(); err != nil {
			return err
		}
		small := len(v.Shape) == 0 || len(v.Data) < f.threshold
		return f.encodeArray(e, v.DType, v.Shape, v.Data, small)
	case Raw:
		return e.Extension(rawExt, v)
	}
	return fmt.Errorf("%w %T", codec.ErrType, v) // not reached: all special types are above
}

func (f *format) encodeArray(e *msgspec.Encoder, dtype string, dims []int, data []byte, small bool) error {
	const entries = 3
	if err := e.Open(entries); err != nil {
		return err
	}
	defer e.Close(entries)
	e.ArrayHead(entries)
	e.Str(dtype)
	if err := e.Shape(dims); err != nil {
		return err
	}
	if small {
		return e.Extension(rawExt, data)
	}
	e.Int(int64(len(f.buffers)))
	f.buffers = append(f.buffers, data)
	return nil
}

// Ext takes raw data, and refuses all else.
func (*format) Ext(typ int8, data []byte) (any, error) {
	if typ == rawExt {
		return Raw(data), nil
	}
	return nil, msgspec.RefuseExt(typ)
}

// Map makes nothing of maps.
func (*format) Map(func(string) (any, bool)) (any, bool, error) { return nil, false, nil }

// Assign fills raw data, and tensors and arrays from lists of dtype, shape
// and data.
func (f *format) Assign(target, v any) error {
	if raw, ok := target.(*Raw); ok {
		if *raw, ok = v.(Raw); !ok {
			return msgspec.Mismatch("%T does not fit a vllm.Raw", v)
		}
		return nil
	}
	array, err := f.array(v)
	if err != nil {
		return err
	}
	return msgspec.AssignArray(target, array)
}

// array returns the tensor or array that v, a decoded list, stands for.
func (f *format) array(v any) (any, error) {
	list, ok := v.([]any)
	if !ok || len(list) != 3 {
		return nil, msgspec.Mismatch("a tensor or array is a list of dtype, shape and data, not %T", v)
	}
	dtype, ok := list[0].(string)
	if !ok {
		return nil, msgspec.Mismatch("the dtype of a tensor or array is text, not %T", list[0])
	}
	dims, err := msgspec.Shape(list[1])
	if err != nil {
		return nil, err
	}
	data, err := f.data(list[2])
	if err != nil {
		return nil, err
	}
	if dtype != "" && strings.IndexByte("<>|", dtype[0]) >= 0 {
		a := python.NDArray{DType: dtype, Shape: dims, Data: data}
		return a, a.Validate()
	}
	return msgspec.Tensor(dtype, dims, data)
}

// data returns the bytes that the last element of a list stands for.
func (f *format) data(v any) ([]byte, error) {
	switch v := v.(type) {
	case Raw:
		return v, nil
	case int64:
		// The first buffer is no data. Python would count a negative index from
		// the end; no encoder writes one.
		if v < 1 || v >= int64(len(f.buffers)) {
			return nil, fmt.Errorf("data are in buffer %d of %d", v, len(f.buffers))
		}
		b := f.buffers[v]
		return b[:len(b):len(b)], nil
	case map[string]any, python.Dict:
		return nil, msgspec.Mismatch("the data are not in the message: it has a handle to them")
	}
	return nil, msgspec.Mismatch("data are an index or extension %d, not %T", rawExt, v)
}
