package bundle_test

import (
	"bytes"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

func tensor(dtype codec.DType, data string, shape ...int) codec.Tensor {
	return codec.Tensor{DType: dtype, Shape: append([]int{}, shape...), Data: []byte(data)}
}

// device is a tensor whose bytes are in other memory.
type device struct {
	dtype codec.DType
	shape []int
}

func (d *device) TensorType() (codec.DType, []int) { return d.dtype, d.shape }

func TestContract(t *testing.T) {
	value := map[string]any{"hidden": []any{tensor(codec.DTypeInt16, "abcd", 2), int64(1)}, "name": "x"}
	codectest.Contract(t, bundle.Serializer{}, value, []any{make(chan int)}, (*any)(nil))
	codectest.Contract(t, bundle.Serializer{}, nil, &device{dtype: codec.DTypeInt8}, (*map[string]any)(nil))
}

// TestRoundTrip encodes and decodes any value.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := codectest.Values(codectest.Tensors(), codectest.Tensors()).Draw(t, "value")
		payload, err := bundle.Serializer{}.Append(nil, value)
		if err != nil {
			t.Fatal(err)
		}
		got, err := codec.Decode[python.Dict](bundle.Serializer{}, wrapped(t, value))
		if err != nil {
			t.Fatal(err)
		}
		want := codectest.Arrived(python.Dict{{Key: "v", Value: value}})
		if diff := cmp.Diff(want, any(got), codectest.Equal); diff != "" {
			t.Fatal(diff)
		}
		b, err := bundle.Open(payload)
		if err != nil {
			t.Fatal(err)
		}
		for _, tensor := range b.Tensors {
			if tensor.Offset%64 != 0 {
				t.Fatalf("%v at %d", &tensor, tensor.Offset)
			}
			if n := len(tensor.Data); n > 0 && &tensor.Data[0] != &payload[tensor.Offset] {
				t.Fatal("data was copied")
			}
		}
	})
}

// wrapped encodes a value in a dict, inside which dicts keep their order.
func wrapped(t *rapid.T, value any) []byte {
	payload, err := bundle.Serializer{}.Append(nil, python.Dict{{Key: "v", Value: value}})
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

type step struct {
	Request string         `msgpack:"request"`
	Hidden  codec.Tensor   `msgpack:"hidden"`
	Mask    *codec.Tensor  `msgpack:"mask"`
	Cache   *bundle.Tensor `msgpack:"cache"`
	Scale   bundle.Tensor  `msgpack:"scale"`
	None    *bundle.Tensor `msgpack:"none"`
	Codes   python.NDArray `msgpack:"codes"`
	Sent    time.Time      `msgpack:"sent"`
}

func TestStructs(t *testing.T) {
	hidden, mask := tensor(codec.DTypeBFloat16, "abcd", 2, 1), tensor(codec.DTypeBool, "\x01", 1)
	want := step{
		Request: "r", Hidden: hidden, Mask: &mask,
		Cache: &bundle.Tensor{DType: codec.DTypeUint8, Shape: []int{3}, Bytes: 3, Data: []byte("xyz")},
		Scale: bundle.Tensor{DType: codec.DTypeFloat64, Shape: []int{}, Bytes: 8, Data: make([]byte, 8)},
		Codes: python.NDArray{DType: "<i2", Shape: []int{1}, Data: []byte("cd")},
		Sent:  time.Unix(1_700_000_000, 5000).UTC(),
	}
	payload, err := bundle.Serializer{}.Append(nil, &want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := codec.Decode[step](bundle.Serializer{}, payload)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// Tensors in fields that the target does not have are counted too.
	if _, err := codec.Decode[struct{ Request string }](bundle.Serializer{}, payload); err != nil {
		t.Error(err)
	}
}

// TestPlan puts some tensors into the payload and some into places.
func TestPlan(t *testing.T) {
	inside, outside := &device{dtype: codec.DTypeFloat32, shape: []int{2, 2}}, &device{dtype: codec.DTypeFloat16, shape: []int{4, 3}}
	host := tensor(codec.DTypeInt8, "abc", 3)
	p, err := bundle.NewPlan(map[string]any{"a": []any{outside, host}, "b": inside})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Tensors) != 3 || p.Tensors[0].Source != outside || p.Tensors[2].Source != inside {
		t.Fatalf("planned %+v", p.Tensors)
	}
	p.Places = []bundle.Place{{Kind: bundle.PlacePool, Offset: 256, Bytes: 1024, Slot: 1, Generation: 2, Arena: 1, Pool: [16]byte{1}, Device: [16]byte{2}}}
	p.Tensors[0].Place, p.Tensors[0].Strides = 1, []int{8, 2}
	p.MinBytes = 2000
	n, err := p.Size()
	if err != nil || n != 2000 || p.Tensors[0].Bytes != 2*(3*8+2*2+1) {
		t.Fatalf("size %d, %v; %+v", n, err, p.Tensors[0])
	}
	p.Tensors[0].Offset = 512 // known only after the allocation
	dst := bytes.Repeat([]byte{0xee}, n)
	if err := p.EncodeInto(dst); err != nil {
		t.Fatal(err)
	}
	copy(p.Tensors[2].Data, "0123456789abcdef")

	b, err := bundle.Open(dst)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p.Places, b.Places); diff != "" {
		t.Error(diff)
	}
	want := bundle.Tensor{DType: codec.DTypeFloat16, Shape: []int{4, 3}, Strides: []int{8, 2}, Place: 1, Offset: 512, Bytes: 58}
	if diff := cmp.Diff(want, b.Tensors[0]); diff != "" {
		t.Error(diff)
	}
	var got struct {
		A []any `msgpack:"a"`
		B *device
		C any `msgpack:"b"`
	}
	if err := b.Decode(&got, func(t *bundle.Tensor) (any, error) { return t.String() + string(t.Data), nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]any{"float16[4 3] in place 1", "int8[3]abc"}, got.A); diff != "" || got.C != "float32[2 2]0123456789abcdef" {
		t.Error(diff, got.C)
	}
	var typed struct {
		A []*bundle.Tensor `msgpack:"a"`
		B *device          `msgpack:"b"`
	}
	err = b.Decode(&typed, func(t *bundle.Tensor) (any, error) {
		if t.Offset == 512 || t.DType == codec.DTypeInt8 {
			return t, nil
		}
		return inside, nil
	})
	if err != nil || typed.A[0] != &b.Tensors[0] || typed.B != inside {
		t.Errorf("got %+v, %v", typed, err)
	}
	broken := errors.New("no such pool")
	if err := b.Decode(new(any), func(*bundle.Tensor) (any, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want the error of the function", err)
	}
	var mismatch []codec.Tensor
	if err := b.Decode(&struct {
		A *[]codec.Tensor `msgpack:"a"`
	}{&mismatch}, nil); !errors.Is(err, codec.ErrMismatch) {
		t.Errorf("a tensor in a place as a codec.Tensor: %v", err)
	}
}

// TestEncodeRefuses encodes values and plans that Open would refuse.
func TestEncodeRefuses(t *testing.T) {
	gpu := &device{dtype: codec.DTypeInt32, shape: []int{4}}
	place := bundle.Place{Kind: bundle.PlaceHandle, Bytes: 32}
	tests := []struct {
		name  string
		value any
		edit  func(p *bundle.Plan)
		want  error
	}{
		{"data too short", codec.Tensor{DType: codec.DTypeInt8, Shape: []int{2}, Data: []byte("a")}, nil, codec.ErrShape},
		{"no data", &bundle.Tensor{DType: codec.DTypeInt8, Shape: []int{2}}, nil, codec.ErrShape},
		{"strides in the payload", &bundle.Tensor{DType: codec.DTypeInt8, Shape: []int{1}, Strides: []int{1}, Data: []byte("a")}, nil, codec.ErrShape},
		{"source without a dtype", &device{}, nil, codec.ErrShape},
		{"array of objects", python.NDArray{DType: "|S3", Shape: []int{1}, Data: []byte("abc")}, nil, codec.ErrShape},
		{"channel", []any{make(chan int)}, nil, codec.ErrType},
		{"place that is not there", gpu, func(p *bundle.Plan) { p.Tensors[0].Place = 2 }, codec.ErrShape},
		{"negative place", gpu, func(p *bundle.Plan) { p.Tensors[0].Place = -1 }, codec.ErrShape},
		{"offset beyond its place", gpu, func(p *bundle.Plan) { p.Tensors[0].Place, p.Tensors[0].Offset = 1, 20 }, codec.ErrShape},
		{"negative offset", gpu, func(p *bundle.Plan) { p.Tensors[0].Place, p.Tensors[0].Offset = 1, -4 }, codec.ErrShape},
		{"elements out of step", gpu, func(p *bundle.Plan) { p.Tensors[0].Place, p.Tensors[0].Offset = 1, 2 }, codec.ErrShape},
		{"too few strides", gpu, func(p *bundle.Plan) { p.Tensors[0].Place, p.Tensors[0].Strides = 1, []int{} }, codec.ErrShape},
		{"negative stride", gpu, func(p *bundle.Plan) { p.Tensors[0].Place, p.Tensors[0].Strides = 1, []int{-1} }, codec.ErrShape},
		{"strides that overflow", gpu, func(p *bundle.Plan) { p.Tensors[0].Place, p.Tensors[0].Strides = 1, []int{math.MaxInt} }, codec.ErrShape},
		{"strides beyond the place", gpu, func(p *bundle.Plan) { p.Tensors[0].Place, p.Tensors[0].Strides = 1, []int{3} }, codec.ErrShape},
		{"kind of place", gpu, func(p *bundle.Plan) { p.Places[0].Kind = 3 }, codec.ErrShape},
		{"place of negative size", gpu, func(p *bundle.Plan) { p.Places[0].Bytes = -1 }, codec.ErrShape},
		{"place that overflows", gpu, func(p *bundle.Plan) { p.Places[0].Offset = math.MaxInt64 }, codec.ErrShape},
		{"handle with an arena", gpu, func(p *bundle.Plan) { p.Places[0].Arena = 1 }, codec.ErrShape},
		{"pool with a handle", gpu, func(p *bundle.Plan) { p.Places[0].Kind, p.Places[0].Handle[3] = bundle.PlacePool, 1 }, codec.ErrShape},
		{"too many places", gpu, func(p *bundle.Plan) { p.Places = make([]bundle.Place, bundle.MaxPlaces+1) }, codec.ErrLimit},
		{"tensor of no dtype", make([]codec.Tensor, 1), nil, codec.ErrShape},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := bundle.NewPlan(tt.value)
			if err == nil && tt.edit != nil {
				p.Places = []bundle.Place{place}
				tt.edit(p)
				var n int
				if n, err = p.Size(); err == nil {
					err = p.EncodeInto(make([]byte, n))
				}
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestTooManyTensors(t *testing.T) {
	many := make([]any, bundle.MaxTensors+1)
	for i := range many {
		many[i] = tensor(codec.DTypeInt8, "", 0)
	}
	if _, err := (bundle.Serializer{}).Append(nil, many); !errors.Is(err, codec.ErrLimit) {
		t.Errorf("got %v, want ErrLimit", err)
	}
	if _, err := (bundle.Serializer{}).Append(nil, many[1:]); err != nil {
		t.Error(err)
	}
}

// TestSerializerWantsHostMemory: the serializer refuses a tensor on a device, which has no bytes to copy.
func TestSerializerWantsHostMemory(t *testing.T) {
	for _, v := range []any{
		&device{dtype: codec.DTypeInt8, shape: []int{0}}, &device{dtype: codec.DTypeInt8},
		&bundle.Tensor{DType: codec.DTypeInt8, Shape: []int{1}, Place: 1},
	} {
		if _, err := (bundle.Serializer{}).Append(nil, []any{v}); !errors.Is(err, codec.ErrType) && !errors.Is(err, codec.ErrShape) {
			t.Errorf("%T: got %v", v, err)
		}
	}
}
