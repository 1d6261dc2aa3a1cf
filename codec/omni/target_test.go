package omni_test

import (
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/omni"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

// meta and chunk are a payload like those between stages.
type meta struct {
	Finished codec.Tensor `msgpack:"finished"`
	Left     int32        `msgpack:"left_context_size,omitempty"`
}

type base struct {
	Request string    `msgpack:"request_id"`
	Sent    time.Time `msgpack:"sent"`
}

type chunk struct {
	base
	Request string         `msgpack:"request"`
	Tokens  []int64        `msgpack:"token_ids"`
	Audio   []byte         `msgpack:"audio"`
	Embed   *codec.Tensor  `msgpack:"embed"`
	Codes   python.NDArray `msgpack:"codes"`
	Window  python.Slice   `msgpack:"window"`
	Picture *omni.Image    `msgpack:"picture"`
	Scores  map[int]float32
	Extra   any `msgpack:"extra"`
	Meta    *meta
	Half    [4]byte
	Private int `msgpack:"-"`
	hidden  int
}

type pair struct {
	_msgpack struct{} `msgpack:",as_array"`
	First    string
	Second   uint16
}

var (
	_ = chunk{}.hidden
	_ = pair{}._msgpack
)

func sampleChunk() chunk {
	flag := codec.Tensor{DType: codec.DTypeBool, Shape: []int{}, Data: []byte{1}}
	return chunk{
		base: base{Request: "outer", Sent: time.Unix(1_700_000_000, 5000).UTC()}, Request: "r-1",
		Tokens: []int64{1, 300, -7}, Audio: []byte("pcm"),
		Embed:  &codec.Tensor{DType: codec.DTypeBFloat16, Shape: []int{1, 2}, Data: []byte{1, 2, 3, 4}},
		Codes:  python.NDArray{DType: ">u2", Shape: []int{2}, Data: []byte{0, 1, 0, 2}},
		Window: python.Slice{Start: new(2), Step: new(-1)}, Picture: &omni.Image{Mode: "L", Shape: []int{1, 1}, Data: []byte{9}},
		Scores: map[int]float32{7: 0.5, -1: 2}, Extra: []any{"text", int64(3), nil}, Meta: &meta{Finished: flag}, Half: [4]byte{1, 2, 3, 4},
	}
}

func TestStructs(t *testing.T) {
	want := sampleChunk()
	payload, err := omni.Serializer{}.Append(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := codec.Decode[chunk](omni.Serializer{}, payload)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(chunk{})); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	dict, err := codec.Decode[python.Dict](omni.Serializer{}, payload)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, item := range dict {
		keys = append(keys, item.Key.(string))
	}
	names := "request_id sent request token_ids audio embed codes window picture Scores extra Meta Half"
	if got := strings.Join(keys, " "); got != names {
		t.Errorf("fields %s, want %s", got, names)
	}
	if inner, _ := dict.Get("Meta"); len(inner.(python.Dict)) != 1 {
		t.Errorf("an empty field was not omitted: %v", inner)
	}
}

// TestOldContent decodes into a target with old content.
func TestOldContent(t *testing.T) {
	payload, err := omni.Serializer{}.Append(nil, map[string]any{"request": "new", "Scores": map[int]any{1: 1.0}})
	if err != nil {
		t.Fatal(err)
	}
	got := sampleChunk()
	scores := got.Scores
	if err := (omni.Serializer{}).Decode(payload, &got); err != nil {
		t.Fatal(err)
	}
	want := chunk{Request: "new", Scores: map[int]float32{1: 1}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(chunk{})); diff != "" {
		t.Error(diff)
	}
	if len(scores) != 2 {
		t.Errorf("decoding changed a map that the target held: %v", scores)
	}
}

// TestEmbedded encodes fields of embedded structs, but not of embedded
// types with an encoding of their own.
func TestEmbedded(t *testing.T) {
	type Inner struct {
		Name   string `msgpack:"name"`
		Common int
	}
	type Named struct{ X int }
	type Last struct {
		Name string `msgpack:"name"`
	}
	type outer struct {
		Inner
		*Named
		time.Time
		codec.Tensor
		Name    int `msgpack:"name,omitempty"`
		Skipped int `msgpack:"-"`
		Last
	}
	want := outer{
		Inner: Inner{Common: 1}, Named: &Named{X: 2}, Time: time.Unix(3, 0).UTC(),
		Tensor: codec.Tensor{DType: codec.DTypeInt8, Shape: []int{1}, Data: []byte{4}}, Name: 5,
		Last: Last{Name: "hidden"},
	}
	payload, err := omni.Serializer{}.Append(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	dict, err := codec.Decode[python.Dict](omni.Serializer{}, payload)
	if err != nil {
		t.Fatal(err)
	}
	wantDict := python.Dict{
		{Key: "name", Value: int64(5)},
		{Key: "Common", Value: int64(1)},
		{Key: "Named", Value: python.Dict{{Key: "X", Value: int64(2)}}},
		{Key: "Time", Value: want.Time},
		{Key: "Tensor", Value: want.Tensor},
	}
	if diff := cmp.Diff(wantDict, dict); diff != "" {
		t.Error(diff)
	}
	got, err := codec.Decode[outer](omni.Serializer{}, payload)
	if err != nil || got.Common != 1 || got.Named.X != 2 || !got.Time.Equal(want.Time) || got.Data[0] != 4 || got.Name != 5 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestStructAsArray(t *testing.T) {
	payload, err := omni.Serializer{}.Append(nil, pair{First: "a", Second: 300})
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(payload); got != "92a161cd012c" {
		t.Errorf("got %s", got)
	}
	for _, src := range []string{"92a161cd012c", "93a161cd012cc0", "82a65365636f6e64cd012ca54669727374a161"} {
		got, err := codec.Decode[pair](omni.Serializer{}, unhex(t, src))
		if err != nil || got.First != "a" || got.Second != 300 {
			t.Errorf("%s: got %v, %v", src, got, err)
		}
	}
}

// TestEncoding fixes the encoding of values that Python does not have.
func TestEncoding(t *testing.T) {
	text := "text"
	var none *string
	tests := []struct {
		name  string
		value any
		want  string // hex
	}{
		{"sorted map", map[string]int{"b": 1, "aa": 2, "a": 3}, "83a16103a2616102a16201"},
		{"numbers in order", map[int8]bool{5: true, -3: false}, "82fdc205c3"},
		{"mixed keys", map[any]any{"a": 1, int64(1): 2, nil: 3}, "830102a16101c003"},
		{"pointers", []*string{&text, none}, "92a474657874c0"},
		{"nil slice", []int(nil), "c0"},
		{"nil map", map[string]any(nil), "c0"},
		{"nil bytes", []byte(nil), "c0"},
		{"byte array", [2]byte{1, 2}, "c4020102"},
		{"float32", float32(0.5), "cb3fe0000000000000"},
		{"uint64", uint64(math.MaxUint64), "cfffffffffffffffff"},
		{"uint8 is no byte", []any{uint8(200)}, "91ccc8"},
		{"tensor without data", codec.Tensor{DType: codec.DTypeInt8, Shape: []int{0}}, "84aa5f5f74656e736f725f5fc3a56474797065a4696e7438a573686170659100a464617461c400"},
		{"slice", python.Slice{Stop: new(2)}, "93c002c0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := omni.Serializer{}.Append(nil, tt.value)
			if err != nil {
				t.Fatal(err)
			}
			if hex.EncodeToString(got) != tt.want {
				t.Errorf("got %x, want %s", got, tt.want)
			}
		})
	}
}

func TestCannotEncode(t *testing.T) {
	var cycle any
	cycle = []any{1, &cycle, &cycle}
	var pointer any
	pointer = &pointer
	deep := any(codec.Tensor{DType: codec.DTypeInt8, Shape: []int{1}, Data: []byte{1}})
	for range 63 {
		deep = []any{deep}
	}
	tests := []struct {
		name  string
		value any
		want  error
		where string // part of the message
	}{
		{"channel", map[string]any{"a": []any{1, make(chan int)}}, codec.ErrType, "a[1]: "},
		{"field", struct{ Extra any }{func() {}}, codec.ErrType, "Extra: "},
		{"not UTF-8", []string{"\xff"}, codec.ErrType, "[0]: "},
		{"key not UTF-8", map[string]any{"\xff": 1}, codec.ErrType, `["\xff"]`},
		{"bytes as a key", map[[2]byte]int{{}: 1}, codec.ErrType, "keys"},
		{"tensor", []any{codec.Tensor{DType: codec.DTypeInt8, Shape: []int{2}, Data: []byte{1}}}, codec.ErrShape, "[0]: "},
		{"array", []any{python.NDArray{DType: "|O", Shape: []int{0}}}, codec.ErrShape, "[0]: "},
		{"image", []any{omni.Image{Mode: "L", Shape: []int{1}, Data: []byte{1}}}, codec.ErrShape, "[0]: "},
		{"cycle", cycle, codec.ErrLimit, "[1][1]"},
		{"pointer to itself", pointer, codec.ErrLimit, "pointers"},
		{"deep", deep, codec.ErrLimit, "deeper"},
		{"too many values", make([]int, 1<<22), codec.ErrLimit, "values"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := omni.Serializer{}.Append(nil, tt.value)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.where) {
				t.Errorf("got %v, want %v at %q", err, tt.want, tt.where)
			}
			if _, ok := (omni.Serializer{}).Size(tt.value); ok {
				t.Error("it has a size")
			}
		})
	}
}

// TestArraysOfEachKind converts between tensors and arrays, by the type of the
// target.
func TestArraysOfEachKind(t *testing.T) {
	tensor := codec.Tensor{DType: codec.DTypeInt16, Shape: []int{1}, Data: []byte{1, 2}}
	array := python.NDArray{DType: "<i2", Shape: []int{1}, Data: []byte{1, 2}}
	payload, err := omni.Serializer{}.Append(nil, []any{tensor, array})
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := codec.Decode[[]codec.Tensor](omni.Serializer{}, payload)
	if diff := cmp.Diff([]codec.Tensor{tensor, tensor}, tensors); err != nil || diff != "" {
		t.Error(err, diff)
	}
	arrays, err := codec.Decode[[]python.NDArray](omni.Serializer{}, payload)
	if diff := cmp.Diff([]python.NDArray{array, array}, arrays); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
