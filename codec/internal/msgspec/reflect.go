package msgspec

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/pack"
)

// reflected writes a value of a type that Value has no case for.
func (e *Encoder) reflected(v reflect.Value) error {
	for hops := 0; v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface; hops++ {
		if v.IsNil() {
			e.Nil()
			return nil
		}
		if special(e.format, v.Type()) {
			return e.format.Encode(e, v.Interface())
		}
		if hops == pack.MaxDepth { // a pointer to itself
			return fmt.Errorf("%w: more than %d pointers to pointers", codec.ErrLimit, pack.MaxDepth)
		}
		v = v.Elem()
	}
	t := v.Type()
	if plain[t] {
		return e.Value(v.Interface())
	}
	if special(e.format, t) {
		return e.format.Encode(e, v.Interface())
	}
	switch v.Kind() {
	case reflect.Bool:
		e.Bool(v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.Int(v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		e.Uint(v.Uint())
	case reflect.Float32, reflect.Float64:
		e.Float(v.Float())
	case reflect.String:
		return e.Text(v.String())
	case reflect.Slice, reflect.Array:
		return e.elements(v)
	case reflect.Map:
		return e.reflectedMap(v)
	case reflect.Struct:
		return e.fields(v)
	default:
		return &codec.TypeError{Serializer: e.format.Name(), Type: t.String(), Want: wantTypes}
	}
	return nil
}

const wantTypes = "data: numbers, text, bytes, tensors, and slices, maps and structs of them"

func (e *Encoder) elements(v reflect.Value) error {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return e.byteElements(v)
	}
	if v.Kind() == reflect.Slice && v.IsNil() {
		e.Nil()
		return nil
	}
	n := v.Len()
	if err := e.Open(n); err != nil {
		return err
	}
	defer e.Close(n)
	e.ArrayHead(n)
	for i := range n {
		if err := e.element(v.Index(i)); err != nil {
			return atIndex(err, i)
		}
	}
	return nil
}

// element writes a part of a value.
func (e *Encoder) element(v reflect.Value) error {
	if err := e.checkValues(); err != nil {
		return err
	}
	if v.Kind() == reflect.Interface && !v.IsNil() {
		return e.Value(v.Interface())
	}
	return e.reflected(v)
}

// byteElements writes a named []byte or an array of bytes.
func (e *Encoder) byteElements(v reflect.Value) error {
	if v.Kind() == reflect.Slice {
		return e.Bytes(v.Bytes())
	}
	b := make([]byte, v.Len())
	reflect.Copy(reflect.ValueOf(b), v)
	return e.Data(b)
}

// stringMap writes a map in the order of its keys.
func (e *Encoder) stringMap(m map[string]any) error {
	if m == nil {
		e.Nil()
		return nil
	}
	if err := e.Open(len(m)); err != nil {
		return err
	}
	defer e.Close(len(m))
	e.MapHead(len(m))
	if e.Counting { // no order changes the size
		for key, value := range m {
			if err := e.entry(key, value); err != nil {
				return err
			}
		}
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if err := e.entry(key, m[key]); err != nil {
			return err
		}
	}
	return nil
}

func (e *Encoder) entry(key string, value any) error {
	if err := e.Text(key); err != nil {
		return atKey(err, key)
	}
	if err := e.Value(value); err != nil {
		return atKey(err, key)
	}
	return nil
}

// entry is an entry of a map.
type entry struct {
	key, value reflect.Value
	encoded    []byte // the encoded key, if keys are compared by their encodings
}

// reflectedMap writes a map in the order of its keys: of numbers by size, of
// text byte by byte, of others by their encodings.
func (e *Encoder) reflectedMap(m reflect.Value) error {
	if m.IsNil() {
		e.Nil()
		return nil
	}
	n := m.Len()
	if err := e.Open(n); err != nil {
		return err
	}
	defer e.Close(n)
	e.MapHead(n)
	entries := make([]entry, 0, n)
	for pairs := m.MapRange(); pairs.Next(); {
		entries = append(entries, entry{key: pairs.Key(), value: pairs.Value()})
	}
	order, err := e.keyOrder(m.Type().Key().Kind(), entries)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, order)
	for _, entry := range entries {
		if err := e.element(entry.key); err != nil {
			return atKey(err, entry.key.Interface())
		}
		if err := e.element(entry.value); err != nil {
			return atKey(err, entry.key.Interface())
		}
	}
	return nil
}

func (e *Encoder) keyOrder(kind reflect.Kind, entries []entry) (func(a, b entry) int, error) {
	switch kind {
	case reflect.String:
		return func(a, b entry) int { return cmp.Compare(a.key.String(), b.key.String()) }, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(a, b entry) int { return cmp.Compare(a.key.Int(), b.key.Int()) }, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return func(a, b entry) int { return cmp.Compare(a.key.Uint(), b.key.Uint()) }, nil
	default:
		for i := range entries {
			if err := e.encodeKey(&entries[i]); err != nil {
				return nil, atKey(err, entries[i].key.Interface())
			}
		}
		return func(a, b entry) int { return bytes.Compare(a.encoded, b.encoded) }, nil
	}
}

// encodeKey encodes a key such as one of a map[any]any, which must be of a
// kind that is a key for the decoder too.
func (e *Encoder) encodeKey(entry *entry) error {
	single := Encoder{format: e.format}
	if err := single.element(entry.key); err != nil {
		return err
	}
	entry.encoded = single.Buf
	r := pack.NewReader(single.Buf)
	if t, err := r.Next(); err != nil || !isKey(t.Kind) {
		return &codec.TypeError{
			Serializer: e.format.Name(), Type: entry.key.Type().String(),
			Want: "keys that are text, numbers, bools or nil; a python.Dict takes others",
		}
	}
	return nil
}

// isKey reports whether a value of that kind can be the key of a Go map.
func isKey(kind pack.Kind) bool {
	switch kind {
	case pack.Nil, pack.Bool, pack.Int, pack.Uint, pack.Float, pack.Str:
		return true
	default:
		return false
	}
}

// fields writes a struct as a map of its fields, or as an array.
func (e *Encoder) fields(v reflect.Value) error {
	s := structOf(e.format, v.Type())
	n := 0
	for i := range s.fields {
		if s.array || !s.fields[i].omitted(v) {
			n++
		}
	}
	if err := e.Open(n); err != nil {
		return err
	}
	defer e.Close(n)
	if s.array {
		e.ArrayHead(n)
	} else {
		e.MapHead(n)
	}
	for i := range s.fields {
		f := &s.fields[i]
		if !s.array {
			if f.omitted(v) {
				continue
			}
			e.Str(f.name)
		}
		if err := e.element(v.FieldByIndex(f.index)); err != nil {
			return atKey(err, f.name)
		}
	}
	return nil
}
