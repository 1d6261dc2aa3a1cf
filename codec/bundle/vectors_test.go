package bundle_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/python"
	"github.com/omnibus-runtime/omnibus/internal/golden"
)

const vectorsFile = "testdata/vectors.json"

// vectors are the reference for the tests of clients in other languages.
type vectors struct {
	Bundles   []vector `json:"bundles"`
	Malformed []broken `json:"malformed"`
}

type vector struct {
	Name     string  `json:"name"`
	Places   []place `json:"places"`
	MinBytes int     `json:"min_bytes"`
	// Value is a description as in package codectest, and for a tensor in a place
	// ["placed", dtype, shape, strides, place, offset, bytes].
	Value []any  `json:"value"`
	Hex   string `json:"hex"`
}

type place struct {
	Kind       bundle.PlaceKind `json:"kind"`
	Arena      uint32           `json:"arena"`
	Slot       uint32           `json:"slot"`
	Generation uint32           `json:"generation"`
	Device     string           `json:"device"`
	Pool       string           `json:"pool"`
	Offset     int64            `json:"offset"`
	Bytes      int64            `json:"bytes"`
	Handle     string           `json:"handle"`
}

type broken struct {
	Name string `json:"name"`
	Hex  string `json:"hex"`
}

// sample is a value, with the places of the tensors that are not in the payload.
type sample struct {
	name     string
	value    any
	places   []bundle.Place
	minBytes int
}

func samples() []sample {
	pool := bundle.Place{
		Kind: bundle.PlacePool, Arena: 3, Slot: 4, Generation: 5, Offset: 1 << 33, Bytes: 1 << 20,
		Device: [16]byte{0xd0, 15: 0xd1}, Pool: [16]byte{0xb0, 15: 0xb1},
	}
	handle := bundle.Place{
		Kind: bundle.PlaceHandle, Slot: 6, Generation: math.MaxUint32, Offset: 512, Bytes: 4096,
		Device: [16]byte{0xd0, 15: 0xd1}, Pool: [16]byte{0xb0, 15: 0xb1}, Handle: [64]byte{1, 63: 2},
	}
	ones := func(first, last codec.DType) (all []any) {
		for dtype := first; dtype <= last; dtype++ {
			all = append(all, codec.Tensor{DType: dtype, Shape: []int{2, 1}, Data: bytes.Repeat([]byte{1}, 2*dtype.Size())})
		}
		return all
	}
	return []sample{
		{name: "nothing"},
		{name: "text", value: "no tensors"},
		{name: "a tensor", value: tensor(codec.DTypeFloat32, "\x00\x00\x80\x3f\x00\x00\x00\x40", 2)},
		{name: "every dtype", value: ones(codec.DTypeBool, codec.DTypeFloat64)},
		{name: "every dtype of later releases", value: ones(codec.DTypeFloat8E4M3FN, codec.DTypeComplex128)},
		{name: "no dimensions, no elements", value: []any{
			tensor(codec.DTypeInt16, "", 0, 3), tensor(codec.DTypeInt16, "ab"), tensor(codec.DTypeFloat64, "", 2, 0), tensor(codec.DTypeInt8, "c", 1, 1, 1),
		}},
		{name: "elements last of all are none", value: []any{tensor(codec.DTypeInt8, "abc", 3), tensor(codec.DTypeInt8, "", 0)}},
		{name: "nested", value: python.Dict{
			{Key: "request", Value: "r-1"},
			{Key: "step", Value: int64(-300)},
			{Key: "hidden", Value: []any{tensor(codec.DTypeBFloat16, "abcdefgh", 2, 2), nil, true, 0.5}},
			{Key: int64(7), Value: python.Dict{{Key: "mask", Value: tensor(codec.DTypeBool, "\x01\x00\x01", 3)}, {Key: "raw", Value: []byte("\x00\xff")}}},
			{Key: "large", Value: uint64(math.MaxUint64)},
		}},
		{name: "in a pool", places: []bundle.Place{pool}, value: []any{
			&bundle.Tensor{DType: codec.DTypeFloat16, Shape: []int{4, 8}, Place: 1, Offset: 256, Bytes: 64},
			&bundle.Tensor{DType: codec.DTypeFloat64, Shape: []int{}, Place: 1, Offset: 320, Bytes: 8},
			&bundle.Tensor{DType: codec.DTypeInt8, Shape: []int{0}, Place: 1, Offset: 1 << 20},
		}},
		{name: "strides, and both kinds of places", places: []bundle.Place{handle, pool}, value: python.Dict{
			{Key: "column", Value: &bundle.Tensor{DType: codec.DTypeFloat32, Shape: []int{4, 1}, Strides: []int{16, 5}, Place: 1, Offset: 4, Bytes: 196}},
			{Key: "here", Value: tensor(codec.DTypeUint8, "0123456789", 10)},
			{Key: "repeated", Value: &bundle.Tensor{DType: codec.DTypeInt64, Shape: []int{5, 2}, Strides: []int{0, 1}, Place: 2, Offset: 8, Bytes: 16}},
		}},
		{name: "padded", places: []bundle.Place{pool}, minBytes: 513, value: &bundle.Tensor{DType: codec.DTypeUint8, Shape: []int{9}, Place: 1, Bytes: 9}},
	}
}

func (s sample) encode() ([]byte, error) {
	p, err := bundle.NewPlan(s.value)
	if err != nil {
		return nil, err
	}
	p.Places, p.MinBytes = s.places, s.minBytes
	n, err := p.Size()
	if err != nil {
		return nil, err
	}
	dst := bytes.Repeat([]byte{0xee}, n)
	return dst, p.EncodeInto(dst)
}

func (s sample) vector(t *testing.T) vector {
	payload, err := s.encode()
	if err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	v := vector{Name: s.name, Places: []place{}, MinBytes: s.minBytes, Hex: hex.EncodeToString(payload)}
	for _, p := range s.places {
		v.Places = append(v.Places, place{
			p.Kind, p.Arena, p.Slot, p.Generation, hex.EncodeToString(p.Device[:]), hex.EncodeToString(p.Pool[:]),
			p.Offset, p.Bytes, hex.EncodeToString(p.Handle[:]),
		})
	}
	v.Value = codectest.Describe(s.value, func(v any) []any {
		t, ok := v.(*bundle.Tensor)
		if !ok {
			return nil
		}
		return []any{"placed", t.DType.String(), t.Shape, t.Strides, t.Place, t.Offset, t.Bytes}
	})
	return v
}

// TestVectors compares the encoding with the file that the tests of clients in other languages
// use. A difference is a change of the format: it needs a new
// version, not -update.
func TestVectors(t *testing.T) {
	var all vectors
	for _, s := range samples() {
		all.Bundles = append(all.Bundles, s.vector(t))
	}
	for _, tt := range hostile(t) {
		if len(tt.src) <= 4096 {
			all.Malformed = append(all.Malformed, broken{tt.name, hex.EncodeToString(tt.src)})
		}
	}
	golden.JSON(t, vectorsFile, all)
}

// TestVectorsDecode decodes the file and compares with the samples.
func TestVectorsDecode(t *testing.T) {
	var all vectors
	golden.ReadJSON(t, vectorsFile, &all)
	for i, s := range samples() {
		payload, err := hex.DecodeString(all.Bundles[i].Hex)
		if err != nil {
			t.Fatal(err)
		}
		b, err := bundle.Open(payload)
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		}
		got, err := b.DecodeInOrder()
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		if diff := cmp.Diff(s.value, got, codectest.Equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.name, diff)
		}
		if len(s.places)+len(b.Places) > 0 {
			if diff := cmp.Diff(s.places, b.Places); diff != "" {
				t.Errorf("%s: places (-want +got):\n%s", s.name, diff)
			}
		}
	}
	for _, v := range all.Malformed {
		payload, err := hex.DecodeString(v.Hex)
		if err != nil {
			t.Fatal(err)
		}
		if err := (bundle.Serializer{}).Decode(payload, new(any)); !errors.Is(err, codec.ErrMalformed) && !errors.Is(err, codec.ErrLimit) {
			t.Errorf("%s: got %v", v.Name, err)
		}
	}
}
