package omni

import (
	"fmt"
	"reflect"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/msgspec"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

const name = "omni"

// A value that msgpack has no type for is a map that begins with a mark:
//
//	{"__tensor__": true, "dtype": "float32", "shape": [2, 3], "data": bin}
//	{"__ndarray__": true, "dtype": "<f4", "shape": [2, 3], "data": bin}
//	{"__pil_image__": true, "mode": "RGB", "shape": [2, 3, 3], "data": bin}
const (
	tensorMark = "__tensor__"
	arrayMark  = "__ndarray__"
	imageMark  = "__pil_image__"

	dtypeKey = "dtype"
	modeKey  = "mode"
	shapeKey = "shape"
	dataKey  = "data"
)

// format adds vLLM-Omni's marked maps to msgspec.
type format struct{}

var _ msgspec.Format = format{}

var imageType = reflect.TypeFor[Image]()

func (format) Name() string { return name }

func (format) Special(t reflect.Type) bool { return t == imageType }

// Encode writes a tensor, an array or an image as a marked map.
func (format) Encode(e *msgspec.Encoder, v any) error {
	switch v := v.(type) {
	case codec.Tensor:
		if err := v.Validate(); err != nil {
			return err
		}
		return encodeMarked(e, tensorMark, dtypeKey, v.DType.String(), v.Shape, v.Data)
	case python.NDArray:
		if err := v.Validate(); err != nil {
			return err
		}
		return encodeMarked(e, arrayMark, dtypeKey, v.DType, v.Shape, v.Data)
	case Image:
		if err := v.Validate(); err != nil {
			return err
		}
		return encodeMarked(e, imageMark, modeKey, v.Mode, v.Shape, v.Data)
	}
	return fmt.Errorf("%w %T", codec.ErrType, v) // not reached: all special types are above
}

func encodeMarked(e *msgspec.Encoder, mark, kindKey, kind string, dims []int, data []byte) error {
	const entries = 4
	if err := e.Open(entries); err != nil {
		return err
	}
	defer e.Close(entries)
	e.MapHead(entries)
	e.Str(mark)
	e.Bool(true)
	e.Str(kindKey)
	if err := e.Text(kind); err != nil {
		return err
	}
	e.Str(shapeKey)
	if err := e.Shape(dims); err != nil {
		return err
	}
	e.Str(dataKey)
	return e.Data(data)
}

// Ext refuses all extensions: the format has none.
func (format) Ext(typ int8, _ []byte) (any, error) {
	return nil, msgspec.RefuseExt(typ)
}

// Map turns a marked map into the value of its mark. A map that lacks one of the
// other entries is a plain map, and so is one whose mark is false in Python.
func (format) Map(get func(string) (any, bool)) (any, bool, error) {
	for _, mark := range [...]string{tensorMark, arrayMark, imageMark} {
		if value, ok := get(mark); ok && complete(mark, get) && python.Truth(value) {
			v, err := decodeMarked(mark, get)
			return v, true, err
		}
	}
	return nil, false, nil
}

// kindKey is the key of the entry with the type of the elements.
func kindKey(mark string) string {
	if mark == imageMark {
		return modeKey
	}
	return dtypeKey
}

// complete reports whether a map has all entries that go with the mark.
func complete(mark string, get func(string) (any, bool)) bool {
	for _, key := range [...]string{kindKey(mark), shapeKey, dataKey} {
		if _, ok := get(key); !ok {
			return false
		}
	}
	return true
}

func decodeMarked(mark string, get func(string) (any, bool)) (any, error) {
	dims, err := msgspec.Shape(entry(get, shapeKey))
	if err != nil {
		return nil, err
	}
	data, ok := entry(get, dataKey).([]byte)
	if !ok {
		return nil, fmt.Errorf("%s without binary %q", mark, dataKey)
	}
	kindKey := kindKey(mark)
	kind, ok := entry(get, kindKey).(string)
	if !ok {
		return nil, fmt.Errorf("%s without the text %q", mark, kindKey)
	}
	switch mark {
	case tensorMark:
		return msgspec.Tensor(kind, dims, data)
	case arrayMark:
		a := python.NDArray{DType: kind, Shape: dims, Data: data}
		return a, a.Validate()
	default:
		m := Image{Mode: kind, Shape: dims, Data: data}
		return m, m.Validate()
	}
}

func entry(get func(string) (any, bool), key string) any {
	v, _ := get(key)
	return v
}

// Assign fills tensors, arrays and images, and converts between tensors and arrays.
func (format) Assign(target, v any) error {
	if m, ok := target.(*Image); ok {
		image, ok := v.(Image)
		if !ok {
			return msgspec.Mismatch("%T does not fit an omni.Image", v)
		}
		*m = image
		return nil
	}
	return msgspec.AssignArray(target, v)
}
