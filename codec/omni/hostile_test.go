package omni_test

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/omni"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

func TestHostile(t *testing.T) {
	fixstr := func(s string) string { return string([]byte{0xa0 | byte(len(s))}) + s }
	mark := func(mark, kindKey, kind, shape, data string) string {
		return "\x84" + fixstr(mark) + "\xc3" + fixstr(kindKey) + kind + fixstr("shape") + shape + fixstr("data") + data
	}
	tensor := func(dtype, shape, data string) string { return mark("__tensor__", "dtype", dtype, shape, data) }
	array := func(dtype, shape, data string) string {
		return mark("__ndarray__", "dtype", fixstr(dtype), shape, data)
	}
	at := func(value string) string { return "\x81\xa1a\x92\xc0" + value } // the value of a[1]
	tests := []struct {
		name  string
		src   string
		want  error
		where string // part of the message
	}{
		{"empty", "", codec.ErrMalformed, "byte 0"},
		{"two values", "\xc0\xc0", codec.ErrMalformed, "byte 1"},
		{"huge array", "\xdd\xff\xff\xff\xff", codec.ErrMalformed, "declared"},
		{"huge map", "\xdf\xff\xff\xff\xff", codec.ErrMalformed, "declared"},
		{"huge bytes", at("\xc6\xff\xff\xff\xff"), codec.ErrMalformed, "a[1]"},
		{"arrays that claim the same bytes", strings.Repeat("\xdd\x00\x0f\x42\x40", 50) + strings.Repeat("\xc0", 1_000_100), codec.ErrMalformed, "[0]"},
		{"deep", strings.Repeat("\x91", 65) + "\xc0", codec.ErrLimit, "deeper"},
		{"too many values", "\xdd\x00\x40\x00\x00" + strings.Repeat("\xc0", 1<<22), codec.ErrLimit, "values"},
		{"not UTF-8", at("\xa1\xff"), codec.ErrMalformed, "a[1]"},
		{"key not UTF-8", at("\x81\xa1\xff\xc0"), codec.ErrMalformed, "a[1]"},
		{"long key", "\x81\xda\x03\xe8" + strings.Repeat("k", 1000) + "\xc1", codec.ErrMalformed, "kkk"},
		{"pickle", at("\xd4\x01\x00"), codec.ErrMalformed, "a[1]: extension 1 holds a pickled"},
		{"cloudpickle", at("\xc7\x00\x02"), codec.ErrMalformed, "a[1]: extension 2 holds a pickled"},
		{"raw view", at("\xd4\x03\x00"), codec.ErrMalformed, "extension 3 is unknown"},
		{"timestamp", at("\xd4\xff\x00"), codec.ErrMalformed, "a timestamp of 1 bytes"},
		{"timestamp of many nanoseconds", at("\xd7\xff\xff\xff\xff\xff\xff\xff\xff\xff"), codec.ErrMalformed, "nanoseconds"},
		{"tensor too short", at(tensor(fixstr("int16"), "\x91\x02", "\xc4\x03abc")), codec.ErrMalformed, "a[1]: "},
		{"tensor too long", at(tensor(fixstr("int16"), "\x91\x01", "\xc4\x03abc")), codec.ErrMalformed, "a[1]: "},
		{"unknown dtype", at(tensor(fixstr("complex32"), "\x91\x00", "\xc4\x00")), codec.ErrMalformed, `"complex32"`},
		{"dtype of a kilobyte", at(tensor("\xda\x04\x00"+strings.Repeat("x", 1024), "\x91\x00", "\xc4\x00")), codec.ErrMalformed, "a[1]: "},
		{"dtype that is no text", at(tensor("\x01", "\x91\x00", "\xc4\x00")), codec.ErrMalformed, `text "dtype"`},
		{"negative dimension", at(tensor(fixstr("int8"), "\x92\xff\xff", "\xc4\x01a")), codec.ErrMalformed, "dimension 0"},
		{"dimension that is no number", at(tensor(fixstr("int8"), "\x91\xa11", "\xc4\x01a")), codec.ErrMalformed, "dimension 0"},
		{"dimension beyond 63 bits", at(tensor(fixstr("int8"), "\x91\xcf"+strings.Repeat("\xff", 8), "\xc4\x01a")), codec.ErrMalformed, "dimension 0"},
		{"size that overflows", at(tensor(fixstr("int8"), "\x92\xcf\x00\x00\x00\x01\x00\x00\x00\x00\xcf\x00\x00\x00\x01\x00\x00\x00\x00", "\xc4\x00")), codec.ErrMalformed, "overflows"},
		{"too many dimensions", at(tensor(fixstr("int8"), "\xdc\x00\x21"+strings.Repeat("\x01", 33), "\xc4\x01a")), codec.ErrMalformed, "33 dimensions"},
		{"shape that is no list", at(tensor(fixstr("int8"), "\x01", "\xc4\x01a")), codec.ErrMalformed, "the shape is no list"},
		{"data that is no bytes", at(tensor(fixstr("int8"), "\x91\x01", "\xa1a")), codec.ErrMalformed, `binary "data"`},
		{"objects", at(array("|O8", "\x91\x01", "\xc4\x08abcdefgh")), codec.ErrMalformed, "a[1]: "},
		{"records", at(array("|V8", "\x91\x01", "\xc4\x08abcdefgh")), codec.ErrMalformed, "a[1]: "},
		{"elements of no size", at(array("|S0", "\x91\x01", "\xc4\x00")), codec.ErrMalformed, "a[1]: "},
		{"image of four dimensions", at(mark("__pil_image__", "mode", fixstr("L"), "\x94\x01\x01\x01\x01", "\xc4\x01a")), codec.ErrMalformed, "a[1]: "},
		{"image of a mode without bytes for channels", at(mark("__pil_image__", "mode", fixstr("1"), "\x92\x01\x01", "\xc4\x01a")), codec.ErrMalformed, `mode "1"`},
		{"image of other channels than its mode's", at(mark("__pil_image__", "mode", fixstr("RGB"), "\x92\x01\x01", "\xc4\x01a")), codec.ErrMalformed, "mode RGB"},
		{"timestamp before the year 1", at("\xc7\x0c\xff\x00\x00\x00\x00\xff\xff\xff\xf1\x88\x6e\x08\xff"), codec.ErrMalformed, "out of the years"},
		{"timestamp behind the year 9999", at("\xc7\x0c\xff\x00\x00\x00\x00\x00\x00\x00\x3a\xff\xf4\x41\x80"), codec.ErrMalformed, "out of the years"},
		{"timestamp of the first second that there is", at("\xc7\x0c\xff\x3b\x9a\xc9\xff\x80\x00\x00\x00\x00\x00\x00\x00"), codec.ErrMalformed, "out of the years"},
		{"image too short", at(mark("__pil_image__", "mode", fixstr("L"), "\x92\x01\x02", "\xc4\x01a")), codec.ErrMalformed, "a[1]: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, s := range []omni.Serializer{{}, {KeepOrder: true}} {
				var v any
				var bad *codec.PayloadError
				allocated, err := codectest.AllocatedBy(func() error { return s.Decode([]byte(tt.src), &v) })
				if !errors.As(err, &bad) || !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.where) {
					t.Fatalf("got %v, want %v at %q", err, tt.want, tt.where)
				}
				if len(err.Error()) > 400 {
					t.Errorf("an error of %d bytes", len(err.Error()))
				}
				// 16 bytes for each element of a list, the test's copy, and small change.
				if limit := uint64(17*len(tt.src) + 1<<16); allocated > limit {
					t.Errorf("%d bytes of payload made it allocate %d", len(tt.src), allocated)
				}
			}
		})
	}
}

func TestMismatch(t *testing.T) {
	tests := []struct {
		name   string
		value  any
		target any
		where  string
	}{
		{"text as a number", []any{"a"}, new([]int), "[0]: text does not fit a int"},
		{"number as text", map[string]any{"k": 1}, new(map[string]string), "k: an integer does not fit a string"},
		{"float as an integer", 1.5, new(int), "a float"},
		{"too large", 300, new(int8), "300 does not fit a int8"},
		{"too large without a sign", uint64(1 << 63), new(int64), "9223372036854775808 does not fit"},
		{"negative", -1, new(uint64), "-1 does not fit"},
		{"too large a float", 1e300, new(float32), "1e+300"},
		{"bool as a number", true, new(int), "a bool"},
		{"nil as a tensor", nil, new(codec.Tensor), "nil"},
		{"map as a tensor", map[string]any{"dtype": "int8"}, new(codec.Tensor), "codec.Tensor"},
		{"tensor as an image", codec.Tensor{DType: codec.DTypeInt8, Shape: []int{1}, Data: []byte{1}}, new(omni.Image), "omni.Image"},
		{"bfloat16 as an array", codec.Tensor{DType: codec.DTypeBFloat16, Shape: []int{0}}, new(python.NDArray), "bfloat16"},
		{"big endian as a tensor", python.NDArray{DType: ">i4", Shape: []int{0}}, new(codec.Tensor), ">i4"},
		{"text as bytes", "a", new([]byte), "[]byte"},
		{"bytes as text", []byte("a"), new(string), "binary data"},
		{"array as a slice", []int{1}, new(python.Slice), "python.Slice"},
		{"array of another length", []int{1}, new([2]int), "1 elements do not fit a [2]int"},
		{"bytes of another length", []byte{1}, new([2]byte), "1 bytes do not fit a [2]uint8"},
		{"text as a time", "a", new(chunk), "text does not fit"},
		{"list as a dict", []int{}, new(python.Dict), "python.Dict"},
		{"interface", 1, new(error), "error"},
		{"list as a typed key", python.Dict{{Key: []any{}, Value: 1}}, new(map[any]int), "python.Dict"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			payload, err := omni.Serializer{}.Append(nil, tt.value)
			if err != nil {
				t.Fatal(err)
			}
			var bad *codec.PayloadError
			err = omni.Serializer{}.Decode(payload, tt.target)
			if !errors.As(err, &bad) || !errors.Is(err, codec.ErrMismatch) || !strings.Contains(err.Error(), tt.where) {
				t.Errorf("got %v, want ErrMismatch with %q", err, tt.where)
			}
		})
	}
}

// TestLimitsAreReached decodes payloads just within the limits.
func TestLimitsAreReached(t *testing.T) {
	for name, src := range map[string]string{
		"arrays": strings.Repeat("\x91", 64) + "\xc0",
		"maps":   strings.Repeat("\x81\xa0", 64) + "\xc0",
		"bottom": strings.Repeat("\x91", 64) + "\x90",
	} {
		v, err := codec.Decode[any](omni.Serializer{}, []byte(src))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		again, err := omni.Serializer{}.Append(nil, v)
		if err != nil || string(again) != src {
			t.Errorf("%s: %x, %v", name, again, err)
		}
	}
}

// TestUnknownFields decodes entries without a field in the target, except those that
// are refused everywhere.
func TestUnknownFields(t *testing.T) {
	got, err := codec.Decode[pair](omni.Serializer{}, []byte("\x83\xa1x\x92\x80\x81\xc0\xc4\x01a\xa5First\xa1a\xa1y\xcb\x00\x00\x00\x00\x00\x00\x00\x00"))
	if err != nil || got.First != "a" {
		t.Errorf("got %v, %v", got, err)
	}
	_, err = codec.Decode[pair](omni.Serializer{}, []byte("\x81\xa1x\x91\xd4\x01\x00"))
	if !errors.Is(err, codec.ErrMalformed) || !strings.Contains(err.Error(), "x: extension 1 holds a pickled") {
		t.Errorf("a pickled object: %v", err)
	}
}

// TestMarkOfFalse decodes a marked map whose mark is false in Python, to a map.
func TestMarkOfFalse(t *testing.T) {
	for _, mark := range []any{nil, false, int64(0), uint64(0), 0.0, math.Copysign(0, -1), "", []byte{}, []any{}, map[string]any{}} {
		want := map[string]any{"__tensor__": mark, "__ndarray__": mark, "shape": int64(1)}
		payload, err := omni.Serializer{}.Append(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := codec.Decode[any](omni.Serializer{}, payload)
		if mark == uint64(0) {
			want["__tensor__"], want["__ndarray__"] = int64(0), int64(0)
		}
		if diff := cmp.Diff(any(want), got); err != nil || diff != "" {
			t.Errorf("%T: %v %s", mark, err, diff)
		}
	}
}

// TestMarkWithoutItsEntries decodes a map that has a mark, and not all of its other entries.
func TestMarkWithoutItsEntries(t *testing.T) {
	for _, want := range []map[string]any{
		{"__tensor__": true},
		{"__ndarray__": true, "dtype": "<f4", "shape": []any{}},
		{"__tensor__": true, "dtype": "<f4", "data": []byte{}},
		{"__pil_image__": true, "dtype": "<f4", "shape": []any{}, "data": []byte{}},
	} {
		payload, err := omni.Serializer{}.Append(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := codec.Decode[any](omni.Serializer{}, payload)
		if diff := cmp.Diff(any(want), got); err != nil || diff != "" {
			t.Errorf("%v: %v %s", want, err, diff)
		}
	}
}

// TestKeysOutsideGoMaps: keys that no Go map can have are in a python.Dict, also behind others, and inside of maps.
func TestKeysOutsideGoMaps(t *testing.T) {
	for _, key := range []any{[]any{}, []any{int64(1), []any{"a"}}, []byte("a"), time.Unix(5, 0).UTC()} {
		for _, first := range []any{"a", int64(1)} {
			want := map[string]any{"x": python.Dict{{Key: first, Value: int64(1)}, {Key: key, Value: []any{}}, {Key: "b", Value: int64(2)}}}
			payload, err := omni.Serializer{}.Append(nil, want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := codec.Decode[any](omni.Serializer{}, payload)
			if diff := cmp.Diff(any(want), got); err != nil || diff != "" {
				t.Errorf("%T behind %v: %v %s", key, first, err, diff)
			}
		}
	}
}

// TestMarkOfTrue decodes a tensor by a mark that is true in Python.
func TestMarkOfTrue(t *testing.T) {
	for _, mark := range []any{true, 1, -1, uint64(1 << 63), 0.5, math.NaN(), "x", []byte{0}, []any{nil}, map[string]any{"": nil}, time.Unix(0, 0)} {
		payload, err := omni.Serializer{}.Append(nil, map[string]any{"__tensor__": mark, "dtype": "int8", "shape": []int{1}, "data": []byte{7}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := codec.Decode[any](omni.Serializer{}, payload)
		if diff := cmp.Diff(any(codec.Tensor{DType: codec.DTypeInt8, Shape: []int{1}, Data: []byte{7}}), got); err != nil || diff != "" {
			t.Errorf("%T: %v %s", mark, err, diff)
		}
	}
}

// TestKeysOfDicts: keys that no dict in Python can have are neither written nor read.
func TestKeysOfDicts(t *testing.T) {
	keep := omni.Serializer{KeepOrder: true}
	for _, key := range []any{nil, true, int64(1), 1.5, "a", []byte("a"), []any{int64(1), []any{"a"}}, time.Unix(1, 0).UTC()} {
		want := python.Dict{{Key: key, Value: int64(1)}}
		payload, err := keep.Append(nil, want)
		if err != nil {
			t.Errorf("%T: %v", key, err)
			continue
		}
		got, err := codec.Decode[any](keep, payload)
		if diff := cmp.Diff(any(want), got); err != nil || diff != "" {
			t.Errorf("%T: %v %s", key, err, diff)
		}
	}
	tensor := codec.Tensor{DType: codec.DTypeInt8, Data: []byte{1}}
	for _, key := range []any{python.Dict{}, map[string]any{"a": 1}, tensor, []any{int64(1), []any{tensor}}} {
		if _, err := keep.Append(nil, []any{tensor, python.Dict{{Key: key, Value: 1}}}); !errors.Is(err, codec.ErrType) || !strings.Contains(err.Error(), "key of a dict") {
			t.Errorf("%T was written as a key: %v", key, err)
		}
		payload, err := keep.Append([]byte{0x81}, key) // and its value
		if err != nil {
			t.Fatal(err)
		}
		if v, err := codec.Decode[any](keep, append(payload, 1)); !errors.Is(err, codec.ErrMalformed) || !strings.Contains(err.Error(), "key of a dict") {
			t.Errorf("%T was read as a key: %v, %v", key, v, err)
		}
	}
}

// TestTimes: times outside Python's datetime are not written.
func TestTimes(t *testing.T) {
	for _, at := range []time.Time{{}, time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)} {
		payload, err := omni.Serializer{}.Append(nil, at)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := codec.Decode[time.Time](omni.Serializer{}, payload); err != nil || !got.Equal(at) {
			t.Errorf("%v: %v, %v", at, got, err)
		}
	}
	for _, at := range []time.Time{time.Time{}.Add(-1), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(math.MaxInt64, 0)} {
		if _, err := (omni.Serializer{}).Append(nil, at); !errors.Is(err, codec.ErrType) {
			t.Errorf("%v: %v", at, err)
		}
	}
}

func TestZeroCopy(t *testing.T) {
	const size = 1 << 20
	type value struct {
		Tensor codec.Tensor
		Array  python.NDArray
		Image  omni.Image
		Bytes  []byte
	}
	data := bytes.Repeat([]byte{1}, size)
	in := value{
		Tensor: codec.Tensor{DType: codec.DTypeFloat32, Shape: []int{size / 4}, Data: data},
		Array:  python.NDArray{DType: "<f8", Shape: []int{size / 8}, Data: data},
		Image:  omni.Image{Mode: "L", Shape: []int{1, size}, Data: data},
		Bytes:  data,
	}
	n, ok := omni.Serializer{}.Size(in)
	if !ok {
		t.Fatal("no size")
	}
	payload := make([]byte, n)
	allocated, err := codectest.AllocatedBy(func() error { return omni.Serializer{}.EncodeInto(payload, in) })
	if err != nil {
		t.Fatal(err)
	}
	if allocated > size/8 {
		t.Errorf("encoding %d bytes in place allocated %d", n, allocated)
	}
	var out value
	allocated, err = codectest.AllocatedBy(func() error { return omni.Serializer{}.Decode(payload, &out) })
	if err != nil {
		t.Fatal(err)
	}
	if allocated > size/8 {
		t.Errorf("decoding %d bytes allocated %d", n, allocated)
	}
	for i := range payload {
		payload[i] = 0xee
	}
	for name, view := range map[string][]byte{"tensor": out.Tensor.Data, "array": out.Array.Data, "image": out.Image.Data, "bytes": out.Bytes} {
		if len(view) != size || cap(view) != size || view[0] != 0xee || view[size-1] != 0xee {
			t.Errorf("%s: no view of the payload", name)
		}
	}
}
