package pack

import (
	"encoding/binary"
	"math"
	"slices"
)

// MaxLen is how many bytes or elements one value may have.
const MaxLen = math.MaxUint32

// Writer appends values to Buf or, if it is Counting, only counts their
// bytes. The zero value appends to a new buffer.
type Writer struct {
	Buf      []byte
	Counting bool
	Size     int // bytes counted
	Values   int // values written or counted
}

func (w *Writer) put(b ...byte) {
	if w.Counting {
		w.Size += len(b)
		return
	}
	w.Buf = append(w.Buf, b...)
}

// copyPieceBytes bounds one call of the builtin copy. From 1 MiB on, on many processors, the
// builtin writes past the caches, and the next reader of the data would wait for memory.
const copyPieceBytes = 256 << 10

// uncachedFrom is the size from which on Copy copies in one piece: so much data does not
// stay in the caches, and is copied faster past them.
const uncachedFrom = 8 << 20

// Copy is the builtin copy for data that is read soon after. It copies in pieces, so dst and src must not overlap.
func Copy[T ~[]byte | ~string](dst []byte, src T) (n int) {
	if src = src[:min(len(src), len(dst))]; len(src) < uncachedFrom {
		for ; len(src)-n > copyPieceBytes; n += copyPieceBytes {
			copy(dst[n:], src[n:n+copyPieceBytes])
		}
	}
	return n + copy(dst[n:], src[n:])
}

// Append is the builtin append for data that is read soon after. Src must not overlap the capacity of dst.
func Append[T ~[]byte | ~string](dst []byte, src T) []byte {
	if len(src) <= copyPieceBytes {
		return append(dst, src...)
	}
	n := len(dst)
	dst = slices.Grow(dst, len(src))[:n+len(src)]
	Copy(dst[n:], src)
	return dst
}

// Raw writes bytes as they are.
func (w *Writer) Raw(b []byte) {
	if w.Counting {
		w.Size += len(b)
		return
	}
	w.Buf = Append(w.Buf, b)
}

// code writes a code and a number of size bytes behind it.
func (w *Writer) code(code byte, n uint64, size int) {
	if w.Counting {
		w.Size += 1 + size
		return
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	w.Buf = append(append(w.Buf, code), b[8-size:]...)
}

// Nil writes nil.
func (w *Writer) Nil() {
	w.Values++
	w.put(0xc0)
}

// Bool writes a bool.
func (w *Writer) Bool(v bool) {
	w.Values++
	if v {
		w.put(0xc3)
	} else {
		w.put(0xc2)
	}
}

// Int writes an integer.
func (w *Writer) Int(v int64) {
	if v >= 0 {
		w.Uint(uint64(v))
		return
	}
	w.Values++
	switch {
	case v >= -32:
		w.put(byte(v))
	case v >= math.MinInt8:
		w.code(0xd0, uint64(v), 1)
	case v >= math.MinInt16:
		w.code(0xd1, uint64(v), 2)
	case v >= math.MinInt32:
		w.code(0xd2, uint64(v), 4)
	default:
		w.code(0xd3, uint64(v), 8)
	}
}

// Uint writes an integer that is not negative.
func (w *Writer) Uint(v uint64) {
	w.Values++
	switch {
	case v < 0x80:
		w.put(byte(v))
	case v <= math.MaxUint8:
		w.code(0xcc, v, 1)
	case v <= math.MaxUint16:
		w.code(0xcd, v, 2)
	case v <= math.MaxUint32:
		w.code(0xce, v, 4)
	default:
		w.code(0xcf, v, 8)
	}
}

// Float writes a number with 64 bits.
func (w *Writer) Float(v float64) {
	w.Values++
	w.code(0xcb, math.Float64bits(v), 8)
}

// Str writes text of at most MaxLen bytes.
func (w *Writer) Str(s string) {
	w.Values++
	switch n := len(s); {
	case n < 32:
		w.put(0xa0 | byte(n))
	default:
		w.length(0xd9, n)
	}
	if w.Counting {
		w.Size += len(s)
		return
	}
	w.Buf = append(w.Buf, s...)
}

// Bin writes binary data of at most MaxLen bytes.
func (w *Writer) Bin(b []byte) {
	w.Values++
	w.length(0xc4, len(b))
	w.Raw(b)
}

// Ext writes an extension of at most MaxLen bytes.
func (w *Writer) Ext(typ int8, data []byte) {
	w.Values++
	switch n := len(data); n {
	case 1, 2, 4, 8, 16:
		code := byte(0xd4)
		for ; n > 1; n >>= 1 {
			code++
		}
		w.put(code)
	default:
		w.length(0xc7, n)
	}
	w.put(byte(typ))
	w.Raw(data)
}

// length writes the code and the length of a value. Code is its code with one byte of
// length; the codes with two and four bytes follow it.
func (w *Writer) length(code byte, n int) {
	switch {
	case n <= math.MaxUint8:
		w.code(code, uint64(n), 1)
	case n <= math.MaxUint16:
		w.code(code+1, uint64(n), 2)
	default:
		w.code(code+2, uint64(n), 4)
	}
}

// ArrayHead begins an array of n values, at most MaxLen.
func (w *Writer) ArrayHead(n int) { w.head(0x90, 0xdc, n) }

// MapHead begins a map of n pairs, at most MaxLen.
func (w *Writer) MapHead(n int) { w.head(0x80, 0xde, n) }

func (w *Writer) head(fixed, code byte, n int) {
	w.Values++
	switch {
	case n < 16:
		w.put(fixed | byte(n))
	case n <= math.MaxUint16:
		w.code(code, uint64(n), 2)
	default:
		w.code(code+1, uint64(n), 4)
	}
}
