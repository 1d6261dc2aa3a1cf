package msgspec

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

// Shape returns the dimensions in a decoded list. Validate of the array checks whether they
// fit the data.
func Shape(v any) ([]int, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("the shape is no list")
	}
	if len(list) > codec.MaxDims {
		return nil, fmt.Errorf("%d dimensions, at most %d", len(list), codec.MaxDims)
	}
	dims := make([]int, len(list))
	for i, element := range list {
		dim, ok := element.(int64)
		if dims[i] = int(dim); !ok || int64(dims[i]) != dim {
			return nil, fmt.Errorf("dimension %d is no size", i)
		}
	}
	return dims, nil
}

// Tensor returns the tensor of a PyTorch dtype, a shape and data.
func Tensor(dtype string, dims []int, data []byte) (codec.Tensor, error) {
	if len(dtype) > maxStepBytes {
		return codec.Tensor{}, fmt.Errorf("a dtype with a name of %d bytes", len(dtype))
	}
	d, err := codec.ParseDType(dtype)
	if err != nil {
		return codec.Tensor{}, err
	}
	t := codec.Tensor{DType: d, Shape: dims, Data: data}
	return t, t.Validate()
}

// AssignArray sets *target, a tensor or an array, to v, a tensor or an array.
func AssignArray(target, v any) error {
	var err error
	switch target := target.(type) {
	case *codec.Tensor:
		switch v := v.(type) {
		case codec.Tensor:
			*target = v
			return nil
		case python.NDArray:
			*target, err = v.Tensor()
			return asMismatch(err)
		}
	case *python.NDArray:
		switch v := v.(type) {
		case python.NDArray:
			*target = v
			return nil
		case codec.Tensor:
			*target, err = python.FromTensor(v)
			return asMismatch(err)
		}
	}
	return Mismatch("%s does not fit a %T", describe(v), target)
}

func describe(v any) string {
	if v == nil {
		return "nil"
	}
	return fmt.Sprintf("a %T", v)
}

func asMismatch(err error) error {
	if err == nil {
		return nil
	}
	return Mismatch("%v", err)
}
