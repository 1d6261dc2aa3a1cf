package bundle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/msgspec"
)

// Bundle is a payload whose tables have been read.
type Bundle struct {
	Places  []Place
	Tensors []Tensor // in the order of the tree

	tree   []byte
	treeAt int // in the payload
}

// Open reads the tables of a payload, and checks all but the tree. Data of
// tensors are views of the payload; the rest is copied, and no more is
// allocated than a small multiple of the tables' size. The error is a
// [*codec.PayloadError].
func Open(payload []byte) (*Bundle, error) {
	if len(payload) < headerBytes {
		return nil, malformed(len(payload), "ends within the header")
	}
	// Another process may still write to the payload, so every field is read
	// once, and the checked value is used.
	first := binary.LittleEndian.Uint64(payload)
	places, tensors := binary.LittleEndian.Uint32(payload[8:]), binary.LittleEndian.Uint32(payload[12:])
	table, tree := binary.LittleEndian.Uint64(payload[16:]), binary.LittleEndian.Uint64(payload[24:])
	switch {
	case first&math.MaxUint32 != magic:
		return nil, malformed(0, fmt.Sprintf("magic %#x is not that of a bundle", first&math.MaxUint32))
	case byte(first>>32) != version:
		return nil, malformed(4, fmt.Sprintf("version %d, want %d", byte(first>>32), version))
	case first>>40 != 0:
		return nil, malformed(5, "reserved bytes are not zero")
	case places > MaxPlaces:
		return nil, beyond(8, fmt.Sprintf("%d places, at most %d", places, MaxPlaces))
	case tensors > MaxTensors:
		return nil, beyond(12, fmt.Sprintf("%d tensors, at most %d", tensors, MaxTensors))
	}
	left := uint64(len(payload) - headerBytes)
	if need := uint64(places) * placeBytes; need > left {
		return nil, malformed(8, fmt.Sprintf("%d places, %d bytes left", places, left))
	} else if left -= need; table > left || table < uint64(tensors)*tensorBytes || table%dimBytes != 0 {
		return nil, malformed(16, fmt.Sprintf("a table of %d bytes for %d tensors, %d bytes left", table, tensors, left))
	} else if left -= table; tree > left {
		return nil, malformed(24, fmt.Sprintf("a tree of %d bytes, %d left", tree, left))
	}
	r := reader{payload: payload, at: headerBytes, numbers: make([]int, 0, int(table-uint64(tensors)*tensorBytes)/dimBytes)}
	b := &Bundle{Places: make([]Place, places), Tensors: make([]Tensor, tensors)}
	if err := r.tables(b, int(table), int(tree)); err != nil {
		return nil, err
	}
	return b, r.padding(len(b.Places) > 0)
}

// reader reads the tables of a payload, once.
type reader struct {
	payload []byte
	at      int
	table   int   // where the table of tensors ends
	numbers []int // shapes and strides of all tensors; never grows
	end     int   // of the checked bytes: the tree, then data
}

func (r *reader) tables(b *Bundle, table, tree int) error {
	for i := range b.Places {
		p := &b.Places[i]
		p.get(r.payload[r.at:])
		if reason := p.validate(); reason != "" {
			return malformed(r.at, fmt.Sprintf("place %d: %s", i+1, reason))
		}
		r.at += placeBytes
	}
	r.table = r.at + table
	b.treeAt = r.table
	r.end = r.table + tree
	b.tree = r.payload[b.treeAt:r.end:r.end]
	for i := range b.Tensors {
		start := r.at
		if reason := r.tensor(&b.Tensors[i], b.Places); reason != "" {
			return malformed(start, fmt.Sprintf("tensor %d: %s", i, reason))
		}
	}
	if r.at != r.table {
		return malformed(r.at, fmt.Sprintf("%d bytes behind the last tensor of the table", r.table-r.at))
	}
	return nil
}

func (p *Place) get(src []byte) {
	p.Kind = PlaceKind(binary.LittleEndian.Uint32(src))
	p.Arena = binary.LittleEndian.Uint32(src[4:])
	p.Slot = binary.LittleEndian.Uint32(src[8:])
	p.Generation = binary.LittleEndian.Uint32(src[12:])
	copy(p.Device[:], src[16:])
	copy(p.Pool[:], src[32:])
	p.Offset = int64(binary.LittleEndian.Uint64(src[48:]))
	p.Bytes = int64(binary.LittleEndian.Uint64(src[56:]))
	copy(p.Handle[:], src[64:])
}

// tensor reads a record, and returns the reason why it is invalid, or "".
func (r *reader) tensor(t *Tensor, places []Place) string {
	if r.table-r.at < tensorBytes {
		return "it is not in the table"
	}
	src := r.payload[r.at:r.table]
	first := binary.LittleEndian.Uint64(src)
	offset, size := binary.LittleEndian.Uint64(src[8:]), binary.LittleEndian.Uint64(src[16:])
	ndim, flags := int(byte(first>>8)), uint16(first>>16)
	switch {
	case ndim > codec.MaxDims:
		return fmt.Sprintf("%d dimensions, at most %d", ndim, codec.MaxDims)
	case flags > 1:
		return "reserved bits are not zero"
	case r.table-r.at < recordBytes(ndim, flags == 1):
		return fmt.Sprintf("its %d dimensions are not in the table", ndim)
	case offset > math.MaxInt || size > math.MaxInt:
		return fmt.Sprintf("%d bytes at %d", size, offset)
	case first>>32 > uint64(len(places)):
		return fmt.Sprintf("it lies in place %d of %d", first>>32, len(places))
	}
	t.DType, t.Place = codec.DType(first), int(first>>32)
	t.Offset, t.Bytes = int64(offset), int64(size)
	r.at += tensorBytes
	var reason string
	if t.Shape, reason = r.ints(ndim); reason != "" {
		return reason
	}
	if flags == 1 {
		if t.Strides, reason = r.ints(ndim); reason != "" {
			return reason
		}
	}
	return r.locate(t, places)
}

// ints reads n numbers of a table with at least n numbers left.
func (r *reader) ints(n int) ([]int, string) {
	start := len(r.numbers)
	for range n {
		number := binary.LittleEndian.Uint64(r.payload[r.at:])
		if number > math.MaxInt {
			return nil, fmt.Sprintf("a dimension or stride of %d", number)
		}
		r.numbers = append(r.numbers, int(number))
		r.at += dimBytes
	}
	return r.numbers[start:len(r.numbers):len(r.numbers)], ""
}

// locate checks the place, the offset and the size of a tensor, and makes Data a view of
// the payload.
func (r *reader) locate(t *Tensor, places []Place) string {
	size, reason := extent(t.DType, t.Shape, t.Strides)
	switch {
	case reason != "":
		return reason
	case size != t.Bytes:
		return fmt.Sprintf("%d bytes, its shape needs %d", t.Bytes, size)
	case t.Strides != nil && (t.Place == 0 || contiguous(t.Shape, t.Strides)):
		return "strides of a contiguous tensor"
	case t.Place != 0:
		return t.check(places)
	}
	want := 0
	if size > 0 {
		want = alignData(r.end)
	}
	switch {
	case t.Offset != int64(want):
		return fmt.Sprintf("it lies at %d, not at %d", t.Offset, want)
	case want > len(r.payload) || size > int64(len(r.payload)-want):
		return fmt.Sprintf("%d bytes at %d of %d", size, want, len(r.payload))
	case size == 0:
		t.Data = []byte{}
		return ""
	case !zero(r.payload[r.end:want]):
		return "the bytes before its data are not zero"
	}
	r.end = want + int(size)
	t.Data = r.payload[want:r.end:r.end]
	return ""
}

// padding checks that the bytes behind the data are zero, and that there are none unless
// they are allowed.
func (r *reader) padding(allowed bool) error {
	rest := r.payload[r.end:]
	if len(rest) > 0 && !allowed {
		return malformed(r.end, fmt.Sprintf("%d bytes behind the bundle", len(rest)))
	}
	if !zero(rest) {
		return malformed(r.end, "the bytes behind the bundle are not zero")
	}
	return nil
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// Decode decodes the tree into v, a non-nil pointer. For each tensor, in the order of the
// tree, it calls replace once, and puts the returned value in the tensor's position; if
// replace is nil, the value is that of [Serializer]. Binary data are views of the payload.
// The error is one of replace, or a [*codec.PayloadError].
func (b *Bundle) Decode(v any, replace func(t *Tensor) (any, error)) error {
	return b.decode(v, replace, false)
}

func (b *Bundle) decode(v any, replace func(t *Tensor) (any, error), keepOrder bool) error {
	f := &format{bundle: b, replace: replace}
	err := msgspec.Decode(f, b.tree, v, keepOrder)
	var bad *codec.PayloadError
	switch {
	case f.err != nil:
		return f.err
	case err == nil && f.next != len(b.Tensors):
		return malformed(b.treeAt, fmt.Sprintf("%d tensors in the tree, %d in the table", f.next, len(b.Tensors)))
	case errors.As(err, &bad):
		bad.Offset += b.treeAt // msgspec.Decode made the error, and no other code refers to it
	}
	return err
}
