package bundle

import (
	"encoding/binary"
	"fmt"
	"reflect"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/msgspec"
)

// format adds tensors to plain values, by their number in the
// table. A format serves one value, in one direction.
type format struct {
	plan *Plan // encoding

	bundle  *Bundle // decoding
	replace func(t *Tensor) (any, error)
	next    int   // the number of the next tensor
	err     error // the last error of replace
}

var _ msgspec.Format = (*format)(nil)

var (
	tensorType = reflect.TypeFor[Tensor]()
	sourceType = reflect.TypeFor[Source]()
)

func (*format) Name() string { return name }

func (*format) Special(t reflect.Type) bool {
	return t == tensorType || t == reflect.PointerTo(tensorType) || t.Implements(sourceType)
}

// Encode writes a tensor's number, and adds the tensor to the plan.
func (f *format) Encode(e *msgspec.Encoder, v any) error {
	t, err := planned(v)
	if err != nil {
		return err
	}
	n := len(f.plan.Tensors)
	if n == MaxTensors {
		return fmt.Errorf("%w: more than %d tensors", codec.ErrLimit, MaxTensors)
	}
	f.plan.Tensors = append(f.plan.Tensors, t)
	return e.Extension(tensorExt, binary.LittleEndian.AppendUint32(nil, uint32(n)))
}

// planned returns the tensor that v, of a special type, stands for.
func planned(v any) (Planned, error) {
	t := Planned{Source: v}
	switch v := v.(type) {
	case codec.Tensor:
		t.Tensor = Tensor{DType: v.DType, Shape: v.Shape, Data: v.Data}
		return t, v.Validate()
	case *Tensor:
		t.Tensor = *v
		return t, v.validate()
	case Tensor:
		t.Tensor, t.Source = v, &v
		return t, v.validate()
	case Source:
		t.DType, t.Shape = v.TensorType()
		err := t.validateExtent()
		return t, err
	case interface{ Tensor() (codec.Tensor, error) }: // python.NDArray
		array, err := v.Tensor()
		t.Tensor = Tensor{DType: array.DType, Shape: array.Shape, Data: array.Data}
		t.Source = array
		return t, err
	default:
		return t, fmt.Errorf("%w %T", codec.ErrType, v) // not reached: all special types are above
	}
}

// Ext returns the value for the next tensor.
func (f *format) Ext(typ int8, data []byte) (any, error) {
	if typ != tensorExt {
		return nil, msgspec.RefuseExt(typ)
	}
	if len(data) != 4 {
		return nil, fmt.Errorf("a tensor's number of %d bytes", len(data))
	}
	n := int64(binary.LittleEndian.Uint32(data))
	if n != int64(f.next) || f.next == len(f.bundle.Tensors) {
		return nil, fmt.Errorf("tensor %d of %d where %d is due", n, len(f.bundle.Tensors), f.next)
	}
	t := &f.bundle.Tensors[f.next]
	f.next++
	if f.replace != nil {
		v, err := f.replace(t)
		f.err = err
		return v, err
	}
	if inside, ok := t.InPayload(); ok {
		return inside, nil
	}
	return t, nil
}

// Map leaves all maps as they are.
func (*format) Map(func(string) (any, bool)) (any, bool, error) { return nil, false, nil }

// Assign fills tensors of this package, the values of replace, codec.Tensor and
// python.NDArray.
func (*format) Assign(target, v any) error {
	switch target := target.(type) {
	case *Tensor:
		if t := asTensor(v); t != nil {
			*target = *t
			return nil
		}
	case **Tensor:
		if t := asTensor(v); t != nil || v == nil {
			*target = t
			return nil
		}
	case *codec.Tensor:
		if t, ok := v.(*Tensor); ok {
			inside, ok := t.InPayload()
			if !ok {
				return msgspec.Mismatch("%v, outside the payload, does not fit a codec.Tensor", t)
			}
			v = inside
		}
	default:
		p := reflect.ValueOf(target).Elem()
		switch value := reflect.ValueOf(v); {
		case v == nil && (p.Kind() == reflect.Pointer || p.Kind() == reflect.Interface):
			p.SetZero()
			return nil
		case v != nil && value.Type().AssignableTo(p.Type()):
			p.Set(value)
			return nil
		}
	}
	return msgspec.AssignArray(target, v)
}

func asTensor(v any) *Tensor {
	switch v := v.(type) {
	case *Tensor:
		return v
	case codec.Tensor:
		return &Tensor{DType: v.DType, Shape: v.Shape, Data: v.Data, Bytes: int64(len(v.Data))}
	}
	return nil
}
