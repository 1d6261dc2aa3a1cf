package vllm_test

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/python"
	"github.com/omnibus-runtime/omnibus/codec/vllm"
)

// values generates values of all kinds that the format has.
func values() *rapid.Generator[any] {
	return codectest.Values(codectest.Tensors(), codectest.NDArrays(), codectest.Slices())
}

// decodeLike decodes buffers without types, and interprets the lists that are
// arrays in want, as a caller does who knows what to expect.
func decodeLike(buffers [][]byte, want any) (any, error) {
	var got any
	if err := (vllm.Decoder{KeepOrder: true}).Decode(buffers, &got); err != nil {
		return nil, err
	}
	return interpretLike(want, got, buffers)
}

func interpretLike(want, got any, buffers [][]byte) (any, error) {
	switch want := want.(type) {
	case codec.Tensor, python.NDArray:
		return vllm.Interpret(got, buffers)
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return got, nil // which the comparison will show
		}
		for i := range list {
			var err error
			if list[i], err = interpretLike(want[i], list[i], buffers); err != nil {
				return nil, err
			}
		}
	case python.Dict:
		dict, ok := got.(python.Dict)
		if !ok || len(dict) != len(want) {
			return got, nil
		}
		for i := range dict {
			var err error
			if dict[i].Value, err = interpretLike(want[i].Value, dict[i].Value, buffers); err != nil {
				return nil, err
			}
		}
	}
	return got, nil
}

// TestAgainstPython has Python encode and decode the same values: vLLM's classes
// if $OMNIBUS_VLLM names a folder with the package vllm, else msgspec.
func TestAgainstPython(t *testing.T) {
	codectest.AgainstPython(t, codectest.Codec{
		Format: "vllm",
		// vLLM's encoder does not get at the memory of dates.
		Refused: []string{"ValueError: cannot include dtype 'M' in a buffer", "ValueError: cannot include dtype 'm' in a buffer"},
		Encode:  func(v any) ([][]byte, error) { return vllm.Encode(v, vllm.Options{}) },
		Decode:  decodeLike,
	}, 200, values())
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := values().Draw(t, "value")
		threshold := rapid.SampledFrom([]int{0, 1, 8, 100, 1 << 30}).Draw(t, "threshold")
		buffers, err := vllm.Encode(want, vllm.Options{ThresholdBytes: threshold})
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeLike(buffers, want)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(codectest.Arrived(want), got, codectest.Equal); diff != "" {
			t.Fatalf("changed (-want +got):\n%s", diff)
		}
	})
}

// output is a struct as vLLM's are: an array of its fields.
type output struct {
	_msgpack  struct{} `msgpack:",as_array"`
	Request   string
	Tokens    []int64
	Logits    *codec.Tensor
	Positions python.NDArray
	Items     map[string]item
	Window    python.Slice
}

type item struct {
	Data  codec.Tensor `msgpack:"data"`
	Field []any        `msgpack:"field"`
}

var _ = output{}._msgpack

func TestTypes(t *testing.T) {
	logits := zeros(100)
	want := output{
		Request: "r", Tokens: []int64{1, 2}, Logits: &logits,
		Positions: python.NDArray{DType: "<i8", Shape: []int{1}, Data: []byte("abcdefgh")},
		Items:     map[string]item{"pixels": {Data: zeros(70), Field: []any{"batched", map[string]any{"keep_on_cpu": false}}}},
		Window:    python.Slice{Start: new(5)},
	}
	buffers, err := vllm.Encode(want, vllm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(buffers) != 3 || len(buffers[1]) != 400 || len(buffers[2]) != 280 {
		t.Errorf("%d buffers", len(buffers))
	}
	var got output
	if err := (vllm.Decoder{}).Decode(buffers, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(output{})); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
}

// TestForward sends on what it does not look into.
func TestForward(t *testing.T) {
	buffers, err := vllm.Encode(map[string]any{"large": zeros(64), "small": zeros(1), "list": []any{"float32", []any{2}, 1}}, vllm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := (vllm.Decoder{}).Decode(buffers, &v); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"large": []any{"float32", []any{int64(64)}, int64(1)},
		"small": []any{"float32", []any{int64(1)}, vllm.Raw{0, 0, 0, 0}},
		"list":  []any{"float32", []any{int64(2)}, int64(1)},
	}
	if diff := cmp.Diff(any(want), v); diff != "" {
		t.Error(diff)
	}
	again, err := vllm.Encode(v, vllm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(buffers[:1], again); diff != "" {
		t.Errorf("another first buffer:\n%s", diff)
	}
}

func TestHostile(t *testing.T) {
	large := make([]byte, 256)
	list := func(dtype, shape, data string) string {
		return "\x91\x93" + string([]byte{0xa0 | byte(len(dtype))}) + dtype + shape + data
	}
	tests := []struct {
		name    string
		first   string
		buffers int // besides the first
		want    error
		where   string
	}{
		{"index of the first", list("float32", "\x91\x40", "\x00"), 1, codec.ErrMalformed, "[0]: data are in buffer 0 of 2"},
		{"index beyond", list("float32", "\x91\x40", "\x02"), 1, codec.ErrMalformed, "buffer 2 of 2"},
		{"negative index", list("float32", "\x91\x40", "\xff"), 1, codec.ErrMalformed, "buffer -1 of 2"},
		{"huge index", list("float32", "\x91\x40", "\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), 1, codec.ErrMismatch, "uint64"},
		{"index of the wrong size", list("float32", "\x91\x41", "\x01"), 1, codec.ErrMalformed, "256 bytes, the shape needs 260"},
		{"data of the wrong size", list("float32", "\x91\x01", "\xd4\x03\x00"), 0, codec.ErrMalformed, "1 bytes, the shape needs 4"},
		{"overflow", list("float32", "\x92\xcf\x40\x00\x00\x00\x00\x00\x00\x00\x04", "\x01"), 1, codec.ErrMalformed, "overflows"},
		{"negative dimension", list("float32", "\x91\xff", "\x01"), 1, codec.ErrMalformed, "dimension 0"},
		{"unknown dtype", list("float8_e5m2fnuz", "\x91\xcd\x01\x00", "\x01"), 1, codec.ErrMalformed, "float8_e5m2fnuz"},
		{"objects", list("|O", "\x91\x01", "\x01"), 1, codec.ErrMalformed, "|O"},
		{"no dtype", list("", "\x91\x01", "\x01"), 1, codec.ErrMalformed, `""`},
		{"no text", "\x91\x93\x01\x91\x01\x01", 1, codec.ErrMismatch, "dtype"},
		{"handle", list("float32", "\x91\x01", "\x81\xa1k\x01"), 0, codec.ErrMismatch, "handle"},
		{"bytes", list("float32", "\x91\x01", "\xc4\x04abcd"), 0, codec.ErrMismatch, "[]uint8"},
		{"pair", "\x91\x92\xa1a\x90", 0, codec.ErrMismatch, "list of dtype"},
		{"pickle", "\x91\xd4\x01\x00", 0, codec.ErrMalformed, "extension 1 holds a pickled"},
		{"cloudpickle", "\x91\xd4\x02\x00", 0, codec.ErrMalformed, "extension 2 holds a pickled"},
		{"unknown extension", "\x91\xd4\x04\x00", 0, codec.ErrMalformed, "extension 4 is unknown"},
		{"no tensor", "\x91\xc0", 0, codec.ErrMismatch, "[0]"},
		{"nothing", "", 0, codec.ErrMalformed, "byte 0"},
		{"deep", strings.Repeat("\x91", 65) + "\xc0", 0, codec.ErrLimit, "deeper"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			buffers := [][]byte{[]byte(tt.first)}
			for range tt.buffers {
				buffers = append(buffers, large)
			}
			var tensors []codec.Tensor
			var bad *codec.PayloadError
			err := vllm.Decoder{}.Decode(buffers, &tensors)
			if tt.name == "deep" { // which a list of tensors would not follow
				err = vllm.Decoder{}.Decode(buffers, new(any))
			}
			if !errors.As(err, &bad) || !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.where) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.where)
			}
		})
	}
	if err := (vllm.Decoder{}).Decode(nil, new(any)); !errors.Is(err, codec.ErrMalformed) {
		t.Errorf("no buffers: %v", err)
	}
	if err := (vllm.Decoder{}).Decode([][]byte{{0xc0}}, nil); !errors.Is(err, codec.ErrType) {
		t.Errorf("no target: %v", err)
	}
}

func TestInterpret(t *testing.T) {
	buffers := [][]byte{nil, make([]byte, 256)}
	for _, tt := range []struct {
		name string
		v    any
		want error
	}{
		{"large", []any{"float32", []any{int64(64)}, int64(1)}, nil},
		{"small", []any{">u2", []any{}, vllm.Raw("ab")}, nil},
		{"ordered handle", []any{"float32", []any{int64(64)}, python.Dict{}}, codec.ErrMismatch},
		{"text", "float32", codec.ErrMismatch},
		{"other list", []any{"a", "b"}, codec.ErrMismatch},
		{"handle", []any{"float32", []any{int64(64)}, map[string]any{}}, codec.ErrMismatch},
		{"no buffer", []any{"float32", []any{int64(64)}, int64(2)}, codec.ErrMalformed},
		{"other size", []any{"float32", []any{int64(63)}, int64(1)}, codec.ErrMalformed},
	} {
		if got, err := vllm.Interpret(tt.v, buffers); !errors.Is(err, tt.want) || (err == nil) != (got != nil) {
			t.Errorf("%s: got %v, %v; want %v", tt.name, got, err, tt.want)
		} else if strings.HasSuffix(tt.name, "handle") && !strings.Contains(err.Error(), "a handle") {
			t.Errorf("%s: %v does not say so", tt.name, err)
		}
	}
}

// TestThreshold has data of a buffer of its own from the threshold on, but for
// arrays that are scalars.
func TestThreshold(t *testing.T) {
	text := python.NDArray{DType: "|S300", Shape: []int{}, Data: make([]byte, 300)}
	list := python.NDArray{DType: "|S300", Shape: []int{1}, Data: make([]byte, 300)}
	number := codec.Tensor{DType: codec.DTypeInt64, Shape: []int{}, Data: make([]byte, 8)}
	for _, tt := range []struct {
		value     any
		threshold int
		buffers   int
	}{
		{text, 0, 1}, {text, 1, 1}, {list, 0, 2}, {list, 300, 2}, {list, 301, 1}, {number, 0, 1}, {number, 8, 2}, {number, 9, 1},
	} {
		buffers, err := vllm.Encode(tt.value, vllm.Options{ThresholdBytes: tt.threshold})
		if err != nil || len(buffers) != tt.buffers {
			t.Errorf("%v, threshold %d: %d buffers, %v; want %d", tt.value, tt.threshold, len(buffers), err, tt.buffers)
		}
	}
}

func TestCannotEncode(t *testing.T) {
	for name, tt := range map[string]struct {
		value any
		want  error
	}{
		"channel": {[]any{make(chan int)}, codec.ErrType},
		"tensor":  {[]any{codec.Tensor{DType: codec.DTypeInt8, Shape: []int{1}}}, codec.ErrShape},
		"array":   {[]any{python.NDArray{DType: "|O", Shape: []int{0}}}, codec.ErrShape},
	} {
		buffers, err := vllm.Encode(tt.value, vllm.Options{})
		if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), "[0]") || buffers != nil {
			t.Errorf("%s: got %v, want %v", name, err, tt.want)
		}
	}
}

// TestZeroCopy follows the data of large and small tensors.
func TestZeroCopy(t *testing.T) {
	const size = 4 << 20
	data := make([]byte, size)
	in := []any{codec.Tensor{DType: codec.DTypeFloat32, Shape: []int{size / 4}, Data: data}, python.NDArray{DType: "<f8", Shape: []int{1}, Data: make([]byte, 8)}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	buffers, err := vllm.Encode(in, vllm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		_msgpack struct{} `msgpack:",as_array"`
		Large    codec.Tensor
		Small    python.NDArray
	}
	if err := (vllm.Decoder{}).Decode(buffers, &out); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > size/8 {
		t.Errorf("%d bytes there and back allocated %d", size, allocated)
	}
	_ = out._msgpack
	larger := [][]byte{buffers[0], make([]byte, size, size+1)} // as a receiver may have it
	var again []codec.Tensor
	if err := (vllm.Decoder{}).Decode(larger, &again); err != nil || cap(again[0].Data) != size {
		t.Errorf("a view reaches beyond its buffer: %v", err)
	}
	data[0], data[size-1] = 1, 2
	if d := out.Large.Data; d[0] != 1 || d[size-1] != 2 || cap(d) != size {
		t.Error("large data were copied")
	}
	if _, err := codec.View[float32](out.Large); err != nil {
		t.Error(err)
	}
	at := bytes.Index(buffers[0], make([]byte, 8))
	buffers[0][at] = 3
	if d := out.Small.Data; d[0] != 3 || cap(d) != 8 {
		t.Error("small data were copied")
	}
}

// TestHandle keeps a tensor whose data are not in the message.
func TestHandle(t *testing.T) {
	type tensor struct {
		_msgpack struct{} `msgpack:",as_array"`
		DType    string
		Shape    []int
		Handle   map[string]any
	}
	first := []byte("\x81\xa1t\x93\xa7float32\x91\x02\x81\xa4name\xa3shm")
	got := map[string]tensor{}
	if err := (vllm.Decoder{}).Decode([][]byte{first}, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]tensor{"t": {DType: "float32", Shape: []int{2}, Handle: map[string]any{"name": "shm"}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(tensor{})); diff != "" {
		t.Error(diff)
	}
	_ = got["t"]._msgpack
	var untyped any
	if err := (vllm.Decoder{}).Decode([][]byte{first}, &untyped); err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{got, untyped} {
		again, err := vllm.Encode(v, vllm.Options{})
		if err != nil || !bytes.Equal(again[0], first) {
			t.Errorf("sent on as %x, %v", again, err)
		}
	}
}

// TestEitherArray decodes lists with dtypes of the other kind.
func TestEitherArray(t *testing.T) {
	buffers := [][]byte{[]byte("\x92\x93\xa5int16\x91\x01\x01\x93\xa3<i2\x91\x01\xd5\x03cd"), []byte("ab")}
	tensor := codec.Tensor{DType: codec.DTypeInt16, Shape: []int{1}, Data: []byte("ab")}
	array := python.NDArray{DType: "<i2", Shape: []int{1}, Data: []byte("ab")}
	var tensors []codec.Tensor
	var arrays []python.NDArray
	if err := errors.Join(vllm.Decoder{}.Decode(buffers, &tensors), vllm.Decoder{}.Decode(buffers, &arrays)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tensor, tensors[0]); diff != "" || string(tensors[1].Data) != "cd" {
		t.Error(diff, tensors[1])
	}
	if diff := cmp.Diff(array, arrays[0]); diff != "" || string(arrays[1].Data) != "cd" {
		t.Error(diff, arrays[1])
	}
}
