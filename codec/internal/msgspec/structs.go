package msgspec

import (
	"reflect"
	"strings"
	"sync"
)

// structInfo is how a struct type is encoded.
type structInfo struct {
	fields []field
	byName map[string]int // index in fields
	array  bool           // by position, as msgspec's array_like
}

type field struct {
	name      string
	index     []int
	omitEmpty bool
}

func (f *field) omitted(v reflect.Value) bool {
	if !f.omitEmpty {
		return false
	}
	v = v.FieldByIndex(f.index)
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

// structs caches the *structInfo of every structKey that was used.
var structs sync.Map

// structKey names a struct type in a format: a type that is special in one format may be a
// plain struct in another.
type structKey struct {
	format string
	typ    reflect.Type
}

// structOf reads the tags of a struct type. The tags are those of
// codec.MsgpackSerializer: a name, "-", omitempty, and as_array on a
// field _msgpack.
func structOf(f Format, t reflect.Type) *structInfo {
	key := structKey{f.Name(), t}
	if s, ok := structs.Load(key); ok {
		return s.(*structInfo)
	}
	s := &structInfo{byName: map[string]int{}}
	s.add(f, t, nil)
	known, _ := structs.LoadOrStore(key, s)
	return known.(*structInfo)
}

func (s *structInfo) add(format Format, t reflect.Type, prefix []int) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("msgpack"), ",")
		if f.Name == "_msgpack" {
			s.array = len(prefix) == 0 && options == "as_array"
			continue
		}
		index := append(append([]int{}, prefix...), i)
		switch {
		case name == "-":
		case f.Anonymous && f.Type.Kind() == reflect.Struct && name == "" && !plain[f.Type] && !special(format, f.Type):
			s.add(format, f.Type, index)
		case f.IsExported():
			if name == "" {
				name = f.Name
			}
			s.set(field{name: name, index: index, omitEmpty: strings.Contains(options, "omitempty")})
		}
	}
}

// set adds a field. A field that is less deeply embedded hides others of its name.
func (s *structInfo) set(f field) {
	i, taken := s.byName[f.name]
	switch {
	case !taken:
		s.byName[f.name] = len(s.fields)
		s.fields = append(s.fields, f)
	case len(f.index) <= len(s.fields[i].index):
		s.fields[i] = f
	}
}
