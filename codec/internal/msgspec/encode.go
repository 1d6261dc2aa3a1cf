package msgspec

import (
	"fmt"
	"math"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/pack"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

// Encoder writes values. It refuses values that a decoder would refuse.
type Encoder struct {
	pack.Writer
	format Format
	depth  int // open containers that are not empty
	// objects counts maps and extensions, which are objects in Python and cannot be in a
	// key. While a key is written, it counts only those in that key.
	objects int
}

// Append appends the encoding of v to dst.
func Append(f Format, dst []byte, v any) ([]byte, error) {
	e := Encoder{format: f, Writer: pack.Writer{Buf: dst}}
	if err := e.root(v); err != nil {
		return dst, encodeError(f, v, err)
	}
	return e.Buf, nil
}

// Size returns the size of the encoding of v.
func Size(f Format, v any) (int, error) {
	e := Encoder{format: f, Writer: pack.Writer{Counting: true}}
	if err := e.root(v); err != nil {
		return 0, encodeError(f, v, err)
	}
	return e.Writer.Size, nil
}

// EncodeInto fills dst with the encoding of v, which has that size.
func EncodeInto(f Format, dst []byte, v any) error {
	out, err := Append(f, dst[:0:len(dst)], v)
	if err != nil {
		return err
	}
	// Append encodes a larger value into new memory.
	if len(out) != len(dst) {
		return &codec.SizeError{Serializer: f.Name(), Got: len(dst), Want: len(out)}
	}
	return nil
}

func (e *Encoder) root(v any) error {
	if err := e.Value(v); err != nil {
		return err
	}
	return e.checkValues()
}

// checkValues is called for every part of a value: a value that refers to itself twice has
// exponentially many parts before each reaches the bound of the depth.
func (e *Encoder) checkValues() error {
	if e.Values > pack.MaxValues {
		return fmt.Errorf("%w: more than %d values", codec.ErrLimit, pack.MaxValues)
	}
	return nil
}

// Value writes v.
func (e *Encoder) Value(v any) error {
	if err := e.checkValues(); err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		e.Nil()
	case bool:
		e.Bool(v)
	case int:
		e.Int(int64(v))
	case int64:
		e.Int(v)
	case float64:
		e.Float(v)
	case string:
		return e.Text(v)
	case []byte:
		return e.Bytes(v)
	case []any:
		return e.list(v)
	case map[string]any:
		return e.stringMap(v)
	case python.Dict:
		return e.dict(v)
	case python.Slice:
		return e.slice(v)
	case time.Time:
		return e.time(v)
	default:
		return e.reflected(reflect.ValueOf(v))
	}
	return nil
}

// Text writes text, which must be UTF-8, as in Python.
func (e *Encoder) Text(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("%w: a string that is not UTF-8: send it as []byte", codec.ErrType)
	}
	if err := checkLen(len(s)); err != nil {
		return err
	}
	e.Str(s)
	return nil
}

// Bytes writes binary data, or nil.
func (e *Encoder) Bytes(b []byte) error {
	if b == nil {
		e.Nil()
		return nil
	}
	return e.Data(b)
}

// Data writes binary data, and nil as empty data.
func (e *Encoder) Data(b []byte) error {
	if err := checkLen(len(b)); err != nil {
		return err
	}
	e.Bin(b)
	return nil
}

// Extension writes an extension.
func (e *Encoder) Extension(typ int8, data []byte) error {
	if err := checkLen(len(data)); err != nil {
		return err
	}
	e.objects++
	e.Ext(typ, data)
	return nil
}

// Shape writes the dimensions of an array.
func (e *Encoder) Shape(dims []int) error {
	if err := e.Open(len(dims)); err != nil {
		return err
	}
	defer e.Close(len(dims))
	e.ArrayHead(len(dims))
	for _, dim := range dims {
		e.Int(int64(dim))
	}
	return nil
}

// checkLen refuses lengths that msgpack cannot encode.
func checkLen(n int) error {
	if uint64(n) > pack.MaxLen {
		return fmt.Errorf("%w: %d bytes or elements in one value; msgpack has at most %d", codec.ErrLimit, n, uint64(pack.MaxLen))
	}
	return nil
}

// Open checks that a container of n elements may begin. A cyclic value exceeds the depth
// here.
func (e *Encoder) Open(n int) error {
	if err := checkLen(n); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	if e.depth == pack.MaxDepth {
		return fmt.Errorf("%w: nested deeper than %d", codec.ErrLimit, pack.MaxDepth)
	}
	e.depth++
	return nil
}

// Close ends a container of n elements.
func (e *Encoder) Close(n int) {
	if n > 0 {
		e.depth--
	}
}

func (e *Encoder) list(v []any) error {
	if v == nil {
		e.Nil()
		return nil
	}
	if err := e.Open(len(v)); err != nil {
		return err
	}
	defer e.Close(len(v))
	e.ArrayHead(len(v))
	for i, element := range v {
		if err := e.Value(element); err != nil {
			return atIndex(err, i)
		}
	}
	return nil
}

func (e *Encoder) dict(v python.Dict) error {
	if v == nil {
		e.Nil()
		return nil
	}
	if err := e.Open(len(v)); err != nil {
		return err
	}
	defer e.Close(len(v))
	e.MapHead(len(v))
	for _, item := range v {
		if err := e.key(item.Key); err != nil {
			return atKey(err, item.Key)
		}
		if err := e.Value(item.Value); err != nil {
			return atKey(err, item.Key)
		}
	}
	return nil
}

// key writes the key of a dict. It refuses keys that are no keys in Python: dicts, and
// values that are encoded as one.
func (e *Encoder) key(v any) error {
	outer := e.objects
	e.objects = 0
	err := e.Value(v)
	if err == nil && e.objects > 0 {
		err = fmt.Errorf("%w: %T as the key of a dict, or in one", codec.ErrType, v)
	}
	e.objects += outer
	return err
}

// MapHead begins a map.
func (e *Encoder) MapHead(pairs int) {
	e.objects++
	e.Writer.MapHead(pairs)
}

func (e *Encoder) slice(v python.Slice) error {
	if err := e.Open(3); err != nil {
		return err
	}
	defer e.Close(3)
	e.ArrayHead(3)
	for _, part := range []*int{v.Start, v.Stop, v.Step} {
		if part == nil {
			e.Nil()
		} else {
			e.Int(int64(*part))
		}
	}
	return nil
}

// timestamp is the extension type that msgpack itself gives to points in time.
const timestamp = -1

// maxYear is the last year of Python's datetimes. The first is 1.
const maxYear = 9999

// datetime reports whether Python's datetime can hold a point in time.
func datetime(v time.Time) bool {
	year := v.UTC().Year()
	return year >= 1 && year <= maxYear
}

// time writes a point in time, as msgspec writes a datetime with a time zone.
func (e *Encoder) time(v time.Time) error {
	if !datetime(v) {
		return fmt.Errorf("%w: a time in the year %d; Python has the years 1 to %d", codec.ErrType, v.UTC().Year(), maxYear)
	}
	seconds, nanoseconds := v.Unix(), uint64(v.Nanosecond())
	var b []byte
	switch {
	case seconds>>34 != 0:
		b = appendBig(appendBig(b, nanoseconds, 4), uint64(seconds), 8)
	case nanoseconds != 0 || seconds > math.MaxUint32:
		b = appendBig(b, nanoseconds<<34|uint64(seconds), 8)
	default:
		b = appendBig(b, uint64(seconds), 4)
	}
	e.Ext(timestamp, b)
	return nil
}

func appendBig(b []byte, n uint64, size int) []byte {
	for shift := 8 * (size - 1); shift >= 0; shift -= 8 {
		b = append(b, byte(n>>shift))
	}
	return b
}
