package msgspec

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/pack"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

// Format adds the special values of a serializer to plain values.
type Format interface {
	// Name is the serializer's name in errors.
	Name() string
	// Special reports whether Encode writes values of type t and Assign fills
	// them. [codec.Tensor] and [python.NDArray] are always special.
	Special(t reflect.Type) bool
	// Encode writes v, a value of a special type.
	Encode(e *Encoder, v any) error
	// Ext returns the value of an extension.
	Ext(typ int8, data []byte) (any, error)
	// Map returns the special value that a map encodes, or false if it is a plain map.
	// Get returns the entries of the map.
	Map(get func(key string) (any, bool)) (v any, ok bool, err error)
	// Assign sets *target, a special type, to the decoded value v.
	Assign(target, v any) error
}

var (
	bytesType = reflect.TypeFor[[]byte]()
	plain     = map[reflect.Type]bool{
		bytesType:                      true,
		reflect.TypeFor[python.Dict](): true, reflect.TypeFor[python.Slice](): true,
		reflect.TypeFor[time.Time](): true,
	}
	arrays = map[reflect.Type]bool{
		reflect.TypeFor[codec.Tensor](): true, reflect.TypeFor[python.NDArray](): true,
	}
)

func special(f Format, t reflect.Type) bool { return arrays[t] || f.Special(t) }

// located is an error with the path to its value, innermost step first.
type located struct {
	steps []string
	err   error
}

func (e *located) Error() string { return e.path() + ": " + e.err.Error() }
func (e *located) Unwrap() error { return e.err }

func (e *located) path() string {
	slices.Reverse(e.steps)
	path := strings.TrimPrefix(strings.Join(e.steps, ""), ".")
	slices.Reverse(e.steps)
	return path
}

// at adds a step to the path of an error. It returns nil for nil.
func at(err error, step func() string) error {
	if err == nil {
		return nil
	}
	var l *located
	if !errors.As(err, &l) {
		l = &located{err: err}
	}
	l.steps = append(l.steps, step())
	return l
}

func atIndex(err error, i int) error {
	return at(err, func() string { return fmt.Sprintf("[%d]", i) })
}

// maxStepBytes bounds the bytes that a key of a payload adds to an error.
const maxStepBytes = 64

func atKey(err error, key any) error {
	return at(err, func() string {
		text, ok := key.(string)
		if !ok {
			text = keyText(key)
		}
		if len(text) > maxStepBytes {
			text = text[:maxStepBytes] + "…"
		}
		switch {
		case !ok:
			return "[" + text + "]"
		case plainName(text):
			return "." + text
		default:
			return fmt.Sprintf("[%q]", text)
		}
	})
}

// keyText returns the text of a key, or only the type of a container, which may be cyclic.
func keyText(key any) string {
	switch reflect.ValueOf(key).Kind() {
	case reflect.Slice, reflect.Map, reflect.Pointer, reflect.Struct, reflect.Array, reflect.Interface:
		return fmt.Sprintf("a key of type %T", key)
	default:
		return fmt.Sprint(key)
	}
}

func plainName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_'
	})
}

// encodeError is the error that a serializer returns for v.
func encodeError(f Format, v any, err error) error {
	var l *located
	if errors.As(err, &l) {
		return fmt.Errorf("codec: %s: encode %T: %s: %w", f.Name(), v, l.path(), l.err)
	}
	return fmt.Errorf("codec: %s: encode %T: %w", f.Name(), v, err)
}

// decodeError is the error that a serializer returns: a *codec.PayloadError. Offset is
// that of the value with the error, or lies in it.
func decodeError(f Format, offset int, err error) error {
	p := &codec.PayloadError{Serializer: f.Name(), Offset: offset, Reason: err.Error(), Err: codec.ErrMalformed}
	var l *located
	if errors.As(err, &l) {
		p.Path = l.path()
		err, p.Reason = l.err, l.err.Error()
	}
	var bad *pack.Error
	if errors.As(err, &bad) {
		p.Offset, p.Reason = bad.Offset, bad.Reason
	}
	p.Err = Kind(err)
	return p
}

// Kind returns the error of package codec for an error in a payload.
func Kind(err error) error {
	var bad *pack.Error
	var miss *mismatch
	switch {
	case errors.As(err, &bad) && bad.Limit:
		return codec.ErrLimit
	case errors.As(err, &miss):
		return codec.ErrMismatch
	default:
		return codec.ErrMalformed
	}
}

// RefuseExt is the error for an extension that a format does not have.
func RefuseExt(typ int8) error {
	if err := pack.Pickled(typ); err != nil {
		return err
	}
	return fmt.Errorf("extension %d is unknown", typ)
}

// mismatch is a value that is well formed and does not fit its target.
type mismatch struct{ reason string }

func (e *mismatch) Error() string { return e.reason }

// Mismatch reports a value that is well formed and does not fit its target.
func Mismatch(format string, args ...any) error {
	return &mismatch{fmt.Sprintf(format, args...)}
}
