package pack

import (
	"fmt"
	"math"
)

// Error reports bytes that are not one msgpack value, or one beyond the
// limits.
type Error struct {
	Offset int // bytes from the start
	Reason string
	Limit  bool // the value is beyond a limit; else it is malformed
}

func (e *Error) Error() string { return fmt.Sprintf("byte %d: %s", e.Offset, e.Reason) }

// Token is a value without its elements, or the head of a container.
type Token struct {
	Kind   Kind
	Key    bool   // it is the key of a map
	Type   int8   // of an extension
	Offset int    // of the value's first byte
	Count  int    // elements of an array, pairs of a map
	Bits   uint64 // a bool, the two's complement of an integer, a float64's bits
	Data   []byte // of text, binary data and extensions: a view
}

// Reader reads one value from bytes that are not trusted: the value's token,
// and those of all that it contains. It allocates nothing.
type Reader struct {
	src    []byte
	pos    int
	values int // begun so far
	// totalMissing is the sum of missing. Each value takes at least one byte, so
	// the sum of a valid payload never exceeds the bytes left. This bounds the memory for
	// declared lengths even across nested containers.
	totalMissing uint64
	missing      [MaxDepth]uint64 // values that each open container still lacks
	depth        int              // open containers
	maps         uint64           // which of them are maps, a bit for each
}

// NewReader returns a reader of the one value that src holds.
func NewReader(src []byte) Reader { return Reader{src: src} }

// Done reports whether the value is complete.
func (r *Reader) Done() bool { return r.values > 0 && r.depth == 0 }

// End checks that nothing follows the complete value.
func (r *Reader) End() error {
	if left := len(r.src) - r.pos; left > 0 {
		return r.fail(r.pos, "%d bytes after the value", left)
	}
	return nil
}

// Pos returns how many bytes have been read.
func (r *Reader) Pos() int { return r.pos }

// Next reads the next token. It must not be called when Done.
func (r *Reader) Next() (Token, error) {
	t := Token{Offset: r.pos}
	if r.values++; r.values > MaxValues {
		return t, &Error{Offset: r.pos, Reason: fmt.Sprintf("more than %d values", MaxValues), Limit: true}
	}
	if r.pos == len(r.src) {
		return t, r.fail(r.pos, "a value is missing")
	}
	code := r.src[r.pos]
	h := heads[code]
	t.Kind = h.kind
	r.pos++
	if r.depth > 0 {
		t.Key = r.missing[r.depth-1]&1 == 0 && r.maps>>(r.depth-1)&1 == 1
		r.missing[r.depth-1]--
		r.totalMissing--
	}
	count := uint64(h.fixed)
	if h.lenBytes > 0 {
		if len(r.src)-r.pos < int(h.lenBytes) {
			return t, r.fail(r.pos, "ends within a length")
		}
		count = r.number(int(h.lenBytes))
	}
	if err := r.content(&t, code, count); err != nil {
		return t, err
	}
	for r.depth > 0 && r.missing[r.depth-1] == 0 {
		r.depth--
	}
	return t, nil
}

// content reads the bytes of a value behind its head.
func (r *Reader) content(t *Token, code byte, count uint64) error {
	switch t.Kind {
	case Array:
		t.Count = int(count)
		return r.openContainer(t.Offset, count)
	case Map:
		t.Count = int(count)
		if err := r.openContainer(t.Offset, 2*count); err != nil || count == 0 {
			return err
		}
		r.maps |= 1 << (r.depth - 1)
		return nil
	case Str, Bin:
		return r.data(t, count)
	case Ext:
		if r.pos == len(r.src) {
			return r.fail(t.Offset, "an extension has no type")
		}
		t.Type = int8(r.src[r.pos])
		r.pos++
		return r.data(t, count)
	case Nil, Bool, Int, Uint, Float:
		if left := uint64(len(r.src) - r.pos); count > left {
			return r.fail(t.Offset, "%d bytes declared, %d left", count, left)
		}
		r.scalar(t, code, int(count))
		return nil
	default:
		return r.fail(t.Offset, "no value begins with %#x", code)
	}
}

// scalar reads a number of size bytes, or, if size is 0, one in its code.
func (r *Reader) scalar(t *Token, code byte, size int) {
	bits := r.number(size)
	switch {
	case t.Kind == Bool:
		bits = uint64(code & 1)
	case t.Kind == Float && size == 4:
		bits = math.Float64bits(float64(math.Float32frombits(uint32(bits))))
	case t.Kind == Uint && size == 0:
		bits = uint64(code)
	case t.Kind == Int && size == 0:
		bits = uint64(int8(code))
	case t.Kind == Int:
		shift := 64 - 8*size
		bits = uint64(int64(bits<<shift) >> shift)
	}
	t.Bits = bits
}

func (r *Reader) number(size int) (bits uint64) {
	for _, b := range r.src[r.pos : r.pos+size] {
		bits = bits<<8 | uint64(b)
	}
	r.pos += size
	return bits
}

// openContainer begins a container of values.
func (r *Reader) openContainer(start int, values uint64) error {
	switch left := uint64(len(r.src) - r.pos); {
	case values > left || values+r.totalMissing > left: // the payload is too short for the declared length
		return r.fail(start, "%d values declared, %d bytes left", values+r.totalMissing, left)
	case values == 0:
		return nil
	case r.depth == MaxDepth:
		return &Error{Offset: start, Reason: fmt.Sprintf("nested deeper than %d", MaxDepth), Limit: true}
	}
	r.missing[r.depth] = values
	r.maps &^= 1 << r.depth
	r.depth++
	r.totalMissing += values
	return nil
}

// data makes the next count bytes the data of t.
func (r *Reader) data(t *Token, count uint64) error {
	if left := uint64(len(r.src) - r.pos); count > left {
		return r.fail(t.Offset, "%d bytes declared, %d left", count, left)
	}
	end := r.pos + int(count)
	t.Data = r.src[r.pos:end:end]
	r.pos = end
	return nil
}

func (r *Reader) fail(offset int, format string, args ...any) error {
	return &Error{Offset: offset, Reason: fmt.Sprintf(format, args...)}
}
