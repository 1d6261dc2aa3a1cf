package msgspec

import (
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/omnibus-runtime/omnibus/codec/internal/pack"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

// into decodes the value that begins with t into v, whose old content is not
// used.
func (d *Decoder) into(v reflect.Value, t pack.Token) error {
	typ := v.Type()
	switch {
	case special(d.format, typ):
		decoded, err := d.any(t)
		if err != nil {
			return err
		}
		return d.format.Assign(v.Addr().Interface(), decoded)
	case plain[typ]:
		return d.plain(v.Addr().Interface(), t)
	case t.Kind == pack.Nil:
		v.SetZero()
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		elem := reflect.New(typ.Elem())
		if err := d.into(elem.Elem(), t); err != nil {
			return err
		}
		v.Set(elem)
		return nil
	case reflect.Interface:
		return d.intoInterface(v, t)
	case reflect.Slice, reflect.Array:
		return d.elements(v, t)
	case reflect.Map:
		return d.intoMap(v, t)
	case reflect.Struct:
		return d.fields(v, t)
	default:
		return scalar(v, t)
	}
}

func unfit(t pack.Token, typ any) error { return Mismatch("%v does not fit a %v", t.Kind, typ) }

func (d *Decoder) intoInterface(v reflect.Value, t pack.Token) error {
	if v.NumMethod() > 0 {
		return unfit(t, v.Type())
	}
	decoded, err := d.any(t)
	if err != nil {
		return err
	}
	v.Set(reflect.ValueOf(&decoded).Elem())
	return nil
}

// plain decodes into the types of the list plain.
func (d *Decoder) plain(target any, t pack.Token) error {
	switch target := target.(type) {
	case *[]byte:
		if t.Kind != pack.Bin && t.Kind != pack.Nil {
			return unfit(t, "[]byte")
		}
		*target = t.Data
	case *python.Dict:
		return d.intoDict(target, t)
	case *python.Slice:
		return d.intoSlice(target, t)
	case *time.Time:
		if t.Kind != pack.Ext || t.Type != timestamp {
			return unfit(t, "time.Time")
		}
		var err error
		*target, err = timeOf(t.Data)
		return err
	}
	return nil
}

func (d *Decoder) intoDict(target *python.Dict, t pack.Token) (err error) {
	switch t.Kind {
	case pack.Nil:
		*target = nil
	case pack.Map:
		defer func(old bool) { d.keepOrder = old }(d.keepOrder)
		d.keepOrder = true
		*target, err = d.dict(t)
	default:
		return unfit(t, "python.Dict")
	}
	return err
}

func (d *Decoder) intoSlice(target *python.Slice, t pack.Token) error {
	if t.Kind != pack.Array || t.Count != 3 {
		return unfit(t, "python.Slice")
	}
	parts := []**int{&target.Start, &target.Stop, &target.Step}
	for i, part := range parts {
		t, err := d.next()
		if err == nil {
			err = d.into(reflect.ValueOf(part).Elem(), t)
		}
		if err != nil {
			return atIndex(err, i)
		}
	}
	return nil
}

func (d *Decoder) elements(v reflect.Value, t pack.Token) error {
	if v.Type().Elem().Kind() == reflect.Uint8 && t.Kind == pack.Bin {
		return bytesInto(v, t)
	}
	if t.Kind != pack.Array {
		return unfit(t, v.Type())
	}
	switch {
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), t.Count, t.Count))
	case v.Len() != t.Count:
		return Mismatch("%d elements do not fit a %v", t.Count, v.Type())
	}
	for i := range t.Count {
		t, err := d.next()
		if err == nil {
			err = d.into(v.Index(i), t)
		}
		if err != nil {
			return atIndex(err, i)
		}
	}
	return nil
}

// bytesInto decodes into a named []byte, as a view, or into an array.
func bytesInto(v reflect.Value, t pack.Token) error {
	switch {
	case v.Kind() == reflect.Slice:
		v.SetBytes(t.Data)
	case v.Len() != len(t.Data):
		return Mismatch("%d bytes do not fit a %v", len(t.Data), v.Type())
	default:
		pack.Copy(v.Bytes(), t.Data)
	}
	return nil
}

func (d *Decoder) intoMap(v reflect.Value, t pack.Token) error {
	if t.Kind != pack.Map {
		return unfit(t, v.Type())
	}
	typ := v.Type()
	m := reflect.MakeMapWithSize(typ, t.Count)
	for range t.Count {
		key, value := reflect.New(typ.Key()).Elem(), reflect.New(typ.Elem()).Elem()
		t, err := d.next()
		if err == nil {
			err = d.into(key, t)
		}
		if err == nil && !key.Comparable() {
			err = Mismatch("a map has a key of type %v; only a python.Dict can hold it", reflect.TypeOf(key.Interface()))
		}
		if err != nil {
			return atKey(err, "key")
		}
		if t, err = d.next(); err == nil {
			err = d.into(value, t)
		}
		if err != nil {
			return atKey(err, key.Interface())
		}
		m.SetMapIndex(key, value)
	}
	v.Set(m)
	return nil
}

// fields decodes a map by the names of a struct's fields, or an array by
// their positions. Entries without a field in the struct are skipped, and
// fields without an entry are zero.
func (d *Decoder) fields(v reflect.Value, t pack.Token) error {
	s := structOf(d.format, v.Type())
	v.SetZero()
	switch t.Kind {
	case pack.Map:
		for range t.Count {
			key, err := d.next()
			if err != nil {
				return err
			}
			if key.Kind != pack.Str {
				return unfit(key, fmt.Sprintf("field name of %v", v.Type()))
			}
			name, err := text(key)
			if err != nil {
				return err
			}
			i, known := s.byName[name]
			if err := d.field(v, s, i, known); err != nil {
				return atKey(err, name)
			}
		}
		return nil
	case pack.Array:
		for i := range t.Count {
			if err := d.field(v, s, i, i < len(s.fields)); err != nil {
				return atIndex(err, i)
			}
		}
		return nil
	default:
		return unfit(t, v.Type())
	}
}

func (d *Decoder) field(v reflect.Value, s *structInfo, i int, known bool) error {
	if !known {
		return d.skip()
	}
	t, err := d.next()
	if err != nil {
		return err
	}
	return d.into(v.FieldByIndex(s.fields[i].index), t)
}

// skip skips a value that has no field in the target. It refuses
// extensions as everywhere.
func (d *Decoder) skip() error {
	for left := 1; left > 0; left-- {
		t, err := d.next()
		if err != nil {
			return err
		}
		switch t.Kind {
		case pack.Array:
			left += t.Count
		case pack.Map:
			left += 2 * t.Count
		case pack.Ext:
			if _, err := d.ext(t); err != nil {
				return err
			}
		default: // nothing follows
		}
	}
	return nil
}

// scalar decodes into types that hold a single value.
func scalar(v reflect.Value, t pack.Token) error {
	switch v.Kind() {
	case reflect.Bool:
		if t.Kind == pack.Bool {
			v.SetBool(t.Bits != 0)
			return nil
		}
	case reflect.String:
		if t.Kind == pack.Str {
			s, err := text(t)
			v.SetString(s)
			return err
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if t.Kind == pack.Int || t.Kind == pack.Uint {
			return signed(v, t)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if t.Kind == pack.Int || t.Kind == pack.Uint {
			return unsigned(v, t)
		}
	case reflect.Float32, reflect.Float64:
		return float(v, t)
	default: // a type that nothing is decoded into, such as a channel
	}
	return unfit(t, v.Type())
}

func signed(v reflect.Value, t pack.Token) error {
	n := int64(t.Bits)
	if (t.Kind == pack.Uint && n < 0) || v.OverflowInt(n) {
		return tooLarge(v, t)
	}
	v.SetInt(n)
	return nil
}

func unsigned(v reflect.Value, t pack.Token) error {
	if (t.Kind == pack.Int && int64(t.Bits) < 0) || v.OverflowUint(t.Bits) {
		return tooLarge(v, t)
	}
	v.SetUint(t.Bits)
	return nil
}

func tooLarge(v reflect.Value, t pack.Token) error {
	if t.Kind == pack.Int {
		return Mismatch("%d does not fit a %v", int64(t.Bits), v.Type())
	}
	return Mismatch("%d does not fit a %v", t.Bits, v.Type())
}

func float(v reflect.Value, t pack.Token) error {
	var f float64
	switch t.Kind {
	case pack.Float:
		f = math.Float64frombits(t.Bits)
	case pack.Int:
		f = float64(int64(t.Bits))
	case pack.Uint:
		f = float64(t.Bits)
	default:
		return unfit(t, v.Type())
	}
	if v.OverflowFloat(f) {
		return Mismatch("%v does not fit a %v", f, v.Type())
	}
	v.SetFloat(f)
	return nil
}
