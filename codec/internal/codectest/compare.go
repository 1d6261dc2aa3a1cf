package codectest

import (
	"bytes"
	"math"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec/python"
)

// Equal makes cmp compare []byte and float64 bit by bit.
var Equal = cmp.Options{
	cmp.Comparer(func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }),
	cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }),
}

// Arrived returns v, one of [Values], as it is after it has been sent: slices
// are lists.
func Arrived(v any) any {
	switch v := v.(type) {
	case python.Slice:
		list := []any{nil, nil, nil}
		for i, part := range []*int{v.Start, v.Stop, v.Step} {
			if part != nil {
				list[i] = int64(*part)
			}
		}
		return list
	case []any:
		list := make([]any, len(v))
		for i, element := range v {
			list[i] = Arrived(element)
		}
		return list
	case python.Dict:
		dict := make(python.Dict, len(v))
		for i, item := range v {
			dict[i] = python.Item{Key: item.Key, Value: Arrived(item.Value)}
		}
		return dict
	}
	return v
}
