package python

import (
	"reflect"
	"time"
)

// Truth reports whether a decoded value is true in Python: it is not nil, false, a zero,
// nor empty.
func Truth(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case uint64:
		return v != 0
	case float64:
		return v != 0
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.String, reflect.Slice, reflect.Map:
		return r.Len() > 0
	default: // an object in Python
		return true
	}
}

// Hashable reports whether a decoded value can be a key in Python: it is no dictionary,
// array or other object, nor a list that contains one.
func Hashable(v any) bool {
	switch v := v.(type) {
	case nil, time.Time, []byte:
		return true
	case Dict:
		return false
	case []any: // as a tuple
		for _, element := range v {
			if !Hashable(element) {
				return false
			}
		}
		return true
	}
	switch reflect.TypeOf(v).Kind() {
	case reflect.Map, reflect.Struct, reflect.Pointer, reflect.Slice:
		return false
	default:
		return true
	}
}
