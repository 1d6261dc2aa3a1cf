package codec

import (
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/omnibus-runtime/omnibus/codec/internal/pack"
)

const msgpackName = "msgpack"

// MsgpackSerializer encodes any Go value as MessagePack, with the field tags
// and interfaces of github.com/vmihailenco/msgpack/v5. It is the default.
//
// Append and Decode accept the same payloads: one value, no deeper than
// [MaxMsgpackDepth], of no more than [MaxMsgpackValues], with text in UTF-8, as
// consumers in other languages require it. Integers take as few
// bytes as their value allows, so an integer that is decoded into an any has
// the smallest type that holds it. Keys of maps from string to string, bool
// or any are sorted, and struct fields have a fixed order; the order of other
// maps is random, so a value has one encoding if it has none of those.
// Interned strings, a private extension of the library, are refused.
//
// A decoded value shares no memory with the payload. As in encoding/json,
// decoding reuses slices and maps that the target already holds: pass a
// new target, as the function [Decode] does, and never one that holds a view. An
// integer that is too large for its target loses the upper bits without an
// error, so both ends declare the same width.
//
// A [Tensor] inside a value is a map of dtype name, shape and data. Large
// tensors are better sent alone, by [TensorSerializer], or in a bundle, as
// views.
type MsgpackSerializer struct{}

var _ Serializer = MsgpackSerializer{}

// Name returns "msgpack".
func (MsgpackSerializer) Name() string { return msgpackName }

// ID returns [IDMsgpack].
func (MsgpackSerializer) ID() ID { return IDMsgpack }

// Append appends the encoding of v to dst. A v that the library cannot
// encode is an [ErrType]; one beyond the limits a [*PayloadError].
func (MsgpackSerializer) Append(dst []byte, v any) ([]byte, error) {
	e := encoders.Get().(*pooledEncoder)
	out, err := e.append(dst, v)
	if err != nil {
		return dst, err // the encoder, whose state is unknown, does not return to the pool
	}
	encoders.Put(e)
	return out, nil
}

// Decode decodes src into *v. Bytes that are not one msgpack value within
// the limits are a [*PayloadError]; a value that does not fit *v is an
// [ErrMismatch].
func (s MsgpackSerializer) Decode(src []byte, v any) error {
	if p := reflect.ValueOf(v); p.Kind() != reflect.Pointer || p.IsNil() {
		return &TypeError{Serializer: s.Name(), Type: fmt.Sprintf("%T", v), Want: "a non-nil pointer"}
	}
	d := decoders.Get().(*pooledDecoder)
	if err := d.decode(src, v); err != nil {
		return err // the decoder, whose state is unknown, does not return to the pool
	}
	if cap(d.src) <= maxPooledBytes {
		decoders.Put(d)
	}
	return nil
}

// maxPooledBytes bounds the memory that an idle decoder keeps.
const maxPooledBytes = 64 << 10

var (
	encoders = sync.Pool{New: func() any { return &pooledEncoder{enc: msgpack.NewEncoder(nil)} }}
	decoders = sync.Pool{New: func() any { return &pooledDecoder{dec: msgpack.NewDecoder(nil)} }}
)

// pooledEncoder is an encoder and the writer it appends through.
type pooledEncoder struct {
	enc *msgpack.Encoder
	dst appendWriter
}

func (e *pooledEncoder) append(dst []byte, v any) ([]byte, error) {
	e.dst.buf = dst
	e.enc.Reset(&e.dst)
	e.enc.SetSortMapKeys(true)
	e.enc.UseCompactInts(true)
	err := e.enc.Encode(v)
	out := e.dst.buf
	e.dst.buf = nil // the pool keeps no reference to the caller's memory
	if err != nil {
		return nil, fmt.Errorf("codec: %s: encode %T: %w: %w", msgpackName, v, ErrType, err)
	}
	// Decode's limits are checked here too, because the error names the cause here.
	if _, _, err := scanMsgpack(out[len(dst):], nil); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return out, nil
}

// appendWriter appends to a slice.
type appendWriter struct{ buf []byte }

func (w *appendWriter) Write(p []byte) (int, error) {
	w.buf = pack.Append(w.buf, p)
	return len(p), nil
}

func (w *appendWriter) WriteByte(c byte) error {
	w.buf = append(w.buf, c)
	return nil
}

// pooledDecoder is a decoder and the reader it reads from.
type pooledDecoder struct {
	dec *msgpack.Decoder
	fencedReader
}

// decode scans and decodes a private copy of src, because another process may write
// to src between the check and the use.
//
// msgpack.Unmarshal is not used because it starts a goroutine for every type
// that it decodes, and never ends it.
func (d *pooledDecoder) decode(src []byte, v any) (err error) {
	d.src, d.pos = pack.Append(d.src[:0], src), 0
	var key pack.Token
	if d.extensions, key, err = scanMsgpack(d.src, d.extensions[:0]); err != nil {
		return err
	}
	if key.Key && hasTextKeys(reflect.TypeOf(v).Elem(), nil) {
		return mismatch(v, fmt.Errorf("byte %d: %s as the key of a map, which has text here: decode it into an any", key.Offset, describeKey(key)))
	}
	d.fences = d.extensions
	// The library panics on some values that do not fit, such as a slice as
	// the key of a map[any]any.
	defer func() {
		if p := recover(); p != nil {
			err = mismatch(v, fmt.Errorf("panic: %v", p))
		}
	}()
	d.dec.Reset(&d.fencedReader)
	d.dec.SetMapDecoder(decodeMap)
	if err := d.dec.Decode(v); err != nil {
		return mismatch(v, d.explainExtension(err))
	}
	if d.pos != len(d.src) {
		return mismatch(v, fmt.Errorf("%d bytes left over", len(d.src)-d.pos))
	}
	return nil
}

// decodeMap decodes a map for an any: a map[string]any, or a map[any]any where a key is nil, a bool, or a number, which
// is an int64, a uint64 above those, or a float64.
func decodeMap(dec *msgpack.Decoder) (any, error) {
	n, err := dec.DecodeMapLen()
	if err != nil || n < 0 {
		return nil, err
	}
	texts, others := make(map[string]any, n), map[any]any(nil)
	for range n {
		key, err := dec.DecodeInterface()
		if err != nil {
			return nil, err
		}
		switch n := reflect.ValueOf(key); n.Kind() { // keys of equal value are equal, in every encoded length
		case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
			key = n.Int()
		case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			if key = n.Uint(); n.Uint() <= math.MaxInt64 {
				key = int64(n.Uint())
			}
		case reflect.Float32:
			key = n.Float()
		default:
		}
		if key != nil && !reflect.TypeOf(key).Comparable() {
			return nil, fmt.Errorf("%.40v, a %T, is the key of a map, which Go cannot have: send text or a number", key, key)
		}
		value, err := dec.DecodeInterface()
		if err != nil {
			return nil, err
		}
		text, isText := key.(string)
		if isText && others == nil {
			texts[text] = value
			continue
		}
		if others == nil {
			others = make(map[any]any, n)
			for k, v := range texts {
				others[k] = v
			}
		}
		others[key] = value
	}
	if others != nil {
		return others, nil
	}
	return texts, nil
}

// hasTextKeys reports whether a type holds maps whose keys are text: the library decodes nil as the key "", and bytes as
// text. Seen holds the types that contain t.
func hasTextKeys(t reflect.Type, seen []reflect.Type) bool {
	if slices.Contains(seen, t) {
		return false
	}
	seen = append(seen, t)
	switch t.Kind() {
	case reflect.Map:
		return t.Key().Kind() == reflect.String || hasTextKeys(t.Elem(), seen)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return hasTextKeys(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if hasTextKeys(t.Field(i).Type, seen) {
				return true
			}
		}
	default:
	}
	return false
}

func describeKey(t pack.Token) string {
	if t.Kind == pack.Nil {
		return "nil"
	}
	return fmt.Sprintf("the bytes %.40q", t.Data)
}

// explainExtension adds to the library's error for an unknown extension that it is for pickled
// objects, if its type says so. A program may have registered its own extensions of these types.
func (d *pooledDecoder) explainExtension(err error) error {
	r := pack.NewReader(d.src)
	for !r.Done() {
		t, bad := r.Next()
		if bad != nil {
			break
		}
		pickled := pack.Pickled(t.Type)
		if t.Kind == pack.Ext && pickled != nil && strings.HasSuffix(err.Error(), fmt.Sprintf("unknown ext id=%d", t.Type)) {
			return fmt.Errorf("byte %d: %w", t.Offset, pickled)
		}
	}
	return err
}

func mismatch(v any, cause error) error {
	return fmt.Errorf("codec: %s: decode into %T: %w: %w", msgpackName, v, ErrMismatch, cause)
}

// fencedReader is the library's only access to the payload. It keeps the
// library from reading the data of an extension as msgpack values.
//
// If the target is a map, the library skips the header of an extension
// and reads its data, which no scan has checked, as values: four bytes there can
// declare a map of 2^32 entries, which the library then allocates. The library reads
// extension data in blocks only, and the codes of values byte by byte, so fencedReader
// refuses to read single bytes of extension data.
type fencedReader struct {
	src        []byte
	pos        int
	extensions []extent // data of the extensions in src, in order
	fences     []extent // of extensions, those that end behind pos
}

var errInsideExtension = errors.New("an extension where the target has a map")

func (r *fencedReader) ReadByte() (byte, error) {
	if r.pos == len(r.src) {
		return 0, io.ErrUnexpectedEOF
	}
	if len(r.fences) > 0 && r.pos >= r.fences[0].start {
		return 0, errInsideExtension
	}
	r.pos++
	return r.src[r.pos-1], nil
}

// UnreadByte is only called after ReadByte, so it never goes back over a
// fence.
func (r *fencedReader) UnreadByte() error {
	r.pos--
	return nil
}

func (r *fencedReader) Read(p []byte) (int, error) {
	if r.pos == len(r.src) && len(p) > 0 {
		return 0, io.EOF
	}
	n := copy(p, r.src[r.pos:])
	r.pos += n
	for len(r.fences) > 0 && r.fences[0].end <= r.pos {
		r.fences = r.fences[1:]
	}
	return n, nil
}
