package bundle_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
)

// The offsets of fields in the result of sampleBytes.
const (
	placesAt  = 8
	tensorsAt = 12
	tableAt   = 16
	treeAt    = 24
	placeAt   = 32
	firstAt   = placeAt + 128 // in the payload, two dimensions
	secondAt  = firstAt + 40  // in the place, two dimensions and strides
	thirdAt   = secondAt + 56 // in the payload, one dimension
	treeStart = thirdAt + 32
	dataAt    = 320
)

// sampleBytes returns a bundle with every kind of record.
func sampleBytes(t testing.TB) []byte {
	t.Helper()
	payload, err := sample{
		value: []any{
			tensor(codec.DTypeInt16, "abcdefghijkl", 3, 2),
			&bundle.Tensor{DType: codec.DTypeFloat32, Shape: []int{2, 3}, Strides: []int{4, 1}, Place: 1, Offset: 16, Bytes: 28},
			tensor(codec.DTypeInt8, "xyz", 3),
		},
		places:   []bundle.Place{{Kind: bundle.PlacePool, Offset: 256, Bytes: 64, Generation: 1}},
		minBytes: dataAt + 64 + 3 + 5,
	}.encode()
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

type hostilePayload struct {
	name  string
	src   []byte
	limit bool
	where string // part of the message
}

// hostile returns payloads that are refused, most of them one change away from a
// bundle.
func hostile(t testing.TB) (all []hostilePayload) {
	t.Helper()
	put := binary.LittleEndian
	edit := func(name, where string, edit func(b []byte)) {
		src := sampleBytes(t)
		edit(src)
		all = append(all, hostilePayload{name: name, src: src, where: where})
	}
	raw := func(name, where string, src []byte) {
		all = append(all, hostilePayload{name: name, src: src, where: where})
	}
	u8 := func(name, where string, at int, v byte) { edit(name, where, func(b []byte) { b[at] = v }) }
	u32 := func(name, where string, at int, v uint32) {
		edit(name, where, func(b []byte) { put.PutUint32(b[at:], v) })
	}
	u64 := func(name, where string, at int, v uint64) {
		edit(name, where, func(b []byte) { put.PutUint64(b[at:], v) })
	}
	limit := func() { all[len(all)-1].limit = true }
	good := sampleBytes(t)

	raw("empty", "byte 0", nil)
	raw("half a header", "header", good[:31])
	raw("header alone", "places", good[:32])
	u8("magic", "magic", 0, 'x')
	u8("version", "version 2", 4, 2)
	u8("reserved", "reserved", 7, 1)
	u32("too many places", "4097 places", placesAt, bundle.MaxPlaces+1)
	limit()
	u32("too many tensors", "65537 tensors", tensorsAt, bundle.MaxTensors+1)
	limit()
	u32("places that are not there", "4096 places", placesAt, bundle.MaxPlaces)
	u32("tensors that are not there", "table of", tensorsAt, bundle.MaxTensors)
	u32("a tensor more in the header", "table", tensorsAt, 4)
	u32("a tensor less in the header", "behind the last tensor", tensorsAt, 2)
	u64("table of a huge size", "table of", tableAt, math.MaxUint64)
	u64("table of an odd size", "table of", tableAt, 129)
	u64("table that is larger", "", tableAt, 136)
	u64("tree of a huge size", "tree of", treeAt, math.MaxUint64)
	u64("tree of no bytes", "not zero", treeAt, 0)
	u64("tree that is shorter", "", treeAt, uint64(len("\x93\xd6\x07....\xd6\x07....\xd6\x07...")))
	u64("tree that is longer", "after the value", treeAt, uint64(len("\x93\xd6\x07....\xd6\x07....\xd6\x07....")+1))
	u32("kind of place", "kind 3", placeAt, 3)
	u32("no kind of place", "kind 0", placeAt, 0)
	u64("place beyond 63 bits", "place 1", placeAt+48, 1<<63)
	u64("place of a negative size", "place 1", placeAt+56, math.MaxUint64)
	u64("place that overflows", "place 1", placeAt+48, math.MaxInt64-63)
	u8("pool with a handle", "with a handle", placeAt+64, 1)
	edit("handle with an arena", "with an arena", func(b []byte) { b[placeAt], b[placeAt+4] = 2, 1 })
	u8("no dtype", "tensor 0", firstAt, 0)
	u8("unknown dtype", "tensor 0: unknown dtype(18)", firstAt, 18)
	u8("too many dimensions", "33 dimensions", firstAt+1, 33)
	u8("dimensions beyond the table", "dimensions are not in the table", firstAt+1, 32)
	u8("strides in the payload", "", firstAt+2, 1)
	u8("reserved bits of a tensor", "reserved bits", firstAt+2, 2)
	u8("reserved byte of a tensor", "reserved bits", firstAt+3, 1)
	u32("place that is not there", "place 2 of 1", secondAt+4, 2)
	u32("place of the largest number", "of 1", firstAt+4, math.MaxUint32)
	u64("dimension beyond 63 bits", "dimension", firstAt+24, 1<<63)
	u64("shape that overflows", "overflows", firstAt+24, math.MaxInt64)
	u64("shape larger than the data", "its shape needs", firstAt+24, 4)
	u64("fewer bytes than the shape", "its shape needs", firstAt+16, 11)
	u64("bytes beyond 63 bits", "bytes at", firstAt+16, math.MaxUint64)
	u64("data before its place", "not at", firstAt+8, 0)
	u64("data in the tree", "not at", firstAt+8, treeStart)
	u64("data that is not aligned", "not at", firstAt+8, dataAt+1)
	u64("data with a gap", "not at", firstAt+8, dataAt+64)
	u64("data shared with another", "not at", thirdAt+8, dataAt)
	u64("data beyond 63 bits", "bytes at", thirdAt+8, 1<<63)
	u8("gap before the data", "not zero", dataAt-1, 1)
	u8("gap between the data", "not zero", dataAt+12, 1)
	u8("bytes behind the bundle", "behind the bundle", len(good)-1, 1)
	raw("data cut short", "bytes at", good[:dataAt+66])
	raw("data that begins behind the end", "bytes at", good[:dataAt+20])
	u64("offset beyond its place", "in a place of 64", secondAt+8, 40)
	u64("offset of the largest number", "in a place of 64", secondAt+8, math.MaxInt64)
	u64("elements out of step", "in a place at", secondAt+8, 18)
	u64("strides that overflow", "overflow", secondAt+40, math.MaxInt64)
	u64("stride beyond 63 bits", "stride", secondAt+40, 1<<63)
	u64("strides beyond the bytes", "its shape needs", secondAt+40, 5)
	edit("strides of a contiguous tensor", "contiguous", func(b []byte) { b[secondAt+16], b[secondAt+40] = 24, 3 })
	tree := func(name, where, from, to string) {
		edit(name, where, func(b []byte) {
			at := bytes.Index(b[treeStart:], []byte(from))
			copy(b[treeStart+at:], to)
		})
	}
	tree("tensor out of turn", "tensor 1 of 3 where 0 is due", "\xd6\x07\x00", "\xd6\x07\x01")
	tree("tensor twice", "[1]: tensor 0 of 3 where 1 is due", "\xd6\x07\x01", "\xd6\x07\x00")
	tree("tensor beyond the table", "where 2 is due", "\xd6\x07\x02", "\xd6\x07\x03")
	tree("tensor left out", "2 tensors in the tree", "\xd6\x07\x02\x00\x00\x00", "\xa5hello")
	tree("number of two bytes", "number of 2 bytes", "\xd6\x07\x00", "\xd5\x07\x00")
	tree("pickle", "pickled", "\xd6\x07\x00", "\xd6\x01\x00")
	tree("unknown extension", "extension 9", "\xd6\x07\x00", "\xd6\x09\x00")
	tree("huge array", "declared", "\x93\xd6\x07\x00\x00", "\xdd\xff\xff\xff\xff")

	text := func(tree string) []byte {
		b := make([]byte, 32, 32+len(tree))
		put.PutUint64(b, uint64('O'|'B'<<8|'D'<<16|'L'<<24)|1<<32)
		put.PutUint64(b[24:], uint64(len(tree)))
		return append(b, tree...)
	}
	raw("padding without a place", "1 bytes behind", append(text("\xc0"), 0))
	raw("no tensor in the table", "tensor 0 of 0", text("\xd6\x07\x00\x00\x00\x00"))
	raw("no tree", "missing", text(""))
	raw("text that is no UTF-8", "UTF-8", text("\xa1\xff"))
	raw("nested too deep", "deeper", text(strings.Repeat("\x91", 65)+"\xc0"))
	limit()
	raw("too many values", "values", text("\xdd\x00\x40\x00\x00"+strings.Repeat("\xc0", 1<<22)))
	limit()
	return all
}

func TestHostile(t *testing.T) {
	for _, tt := range hostile(t) {
		t.Run(tt.name, func(t *testing.T) {
			want := codec.ErrMalformed
			if tt.limit {
				want = codec.ErrLimit
			}
			private := bytes.Clone(tt.src)
			allocated, err := codectest.AllocatedBy(func() error { return bundle.Serializer{}.Decode(private, new(any)) })
			var bad *codec.PayloadError
			if !errors.As(err, &bad) || !errors.Is(err, want) || !strings.Contains(err.Error(), tt.where) {
				t.Fatalf("got %v, want %v with %q", err, want, tt.where)
			}
			if bad.Offset > len(tt.src) {
				t.Errorf("an error at byte %d of %d", bad.Offset, len(tt.src))
			}
			if most := 16<<10 + 64*uint64(len(tt.src)); allocated > most {
				t.Errorf("allocated %d bytes for a payload of %d", allocated, len(tt.src))
			}
			if !bytes.Equal(private, tt.src) {
				t.Error("decoding wrote to the payload")
			}
		})
	}
}

// TestEveryByteIsChecked changes each byte of a bundle: a changed bundle that is accepted has
// another value.
func TestEveryByteIsChecked(t *testing.T) {
	good := sampleBytes(t)
	meaning := func(payload []byte) (any, error) {
		b, err := bundle.Open(payload)
		if err != nil {
			return nil, err
		}
		v, err := b.DecodeInOrder()
		return []any{v, b.Places}, err
	}
	want, err := meaning(good)
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		for _, flip := range []byte{1, 0x80} {
			changed := bytes.Clone(good)
			changed[i] ^= flip
			got, err := meaning(changed)
			if err == nil && cmp.Equal(want, got, codectest.Equal) {
				t.Errorf("byte %d has no meaning", i)
			}
		}
	}
	for n := dataAt + 67; n < len(good); n++ {
		if _, err := meaning(good[:n]); err != nil {
			t.Errorf("fewer zeros behind the bundle: %v", err)
		}
	}
}

// TestTablesBoundAllocations: as many tensors as fit into a payload take no more
// memory than a multiple of it.
func TestTablesBoundAllocations(t *testing.T) {
	many := make([]any, 1000)
	for i := range many {
		many[i] = tensor(codec.DTypeInt8, "", 0)
	}
	payload, err := bundle.Serializer{}.Append(nil, many)
	if err != nil {
		t.Fatal(err)
	}
	allocated, err := codectest.AllocatedBy(func() error {
		_, err := bundle.Open(payload)
		return err
	})
	if err != nil || allocated > 8*uint64(len(payload)) {
		t.Errorf("%d bytes allocated for %d, %v", allocated, len(payload), err)
	}
}
