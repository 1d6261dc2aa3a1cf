package msgspec

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/pack"
	"github.com/omnibus-runtime/omnibus/codec/python"
)

// Decoder reads values.
type Decoder struct {
	r      pack.Reader
	format Format
	// keepOrder makes maps without a type python.Dict.
	keepOrder bool
	offset    int // of the last token
}

// Decode decodes src into v, a non-nil pointer. With keepOrder maps whose Go
// type is any become a python.Dict. The result has views of src.
func Decode(f Format, src []byte, v any, keepOrder bool) error {
	p := reflect.ValueOf(v)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		return &codec.TypeError{Serializer: f.Name(), Type: fmt.Sprintf("%T", v), Want: "a non-nil pointer"}
	}
	d := Decoder{r: pack.NewReader(src), format: f, keepOrder: keepOrder}
	t, err := d.next()
	if err == nil {
		err = d.into(p.Elem(), t)
	}
	if err == nil {
		err = d.r.End()
	}
	if err != nil {
		return decodeError(f, d.offset, err)
	}
	return nil
}

func (d *Decoder) next() (pack.Token, error) {
	t, err := d.r.Next()
	d.offset = t.Offset
	return t, err
}

// any decodes the value that begins with t.
func (d *Decoder) any(t pack.Token) (any, error) {
	switch t.Kind {
	case pack.Nil:
		return nil, nil
	case pack.Bool:
		return t.Bits != 0, nil
	case pack.Int:
		return int64(t.Bits), nil
	case pack.Uint:
		if t.Bits > math.MaxInt64 {
			return t.Bits, nil
		}
		return int64(t.Bits), nil
	case pack.Float:
		return math.Float64frombits(t.Bits), nil
	case pack.Str:
		return text(t)
	case pack.Bin:
		return t.Data, nil
	case pack.Array:
		return d.list(t)
	case pack.Map:
		return d.anyMap(t)
	default:
		return d.ext(t)
	}
}

// text copies text, and checks the copy, because the payload might change meanwhile.
func text(t pack.Token) (string, error) {
	s := string(t.Data)
	if !utf8.ValidString(s) {
		return "", fmt.Errorf("text that is not UTF-8")
	}
	return s, nil
}

func (d *Decoder) list(t pack.Token) ([]any, error) {
	list := make([]any, t.Count)
	for i := range list {
		var err error
		if list[i], err = d.nextAny(); err != nil {
			return nil, atIndex(err, i)
		}
	}
	return list, nil
}

func (d *Decoder) nextAny() (any, error) {
	t, err := d.next()
	if err != nil {
		return nil, err
	}
	return d.any(t)
}

// anyMap decodes a map without a Go type.
func (d *Decoder) anyMap(t pack.Token) (any, error) {
	if d.keepOrder {
		dict, err := d.dict(t)
		if err != nil {
			return nil, err
		}
		return d.meaning(dict, dict.Get)
	}
	m := anyMap{texts: make(map[string]any, t.Count)}
	var dict python.Dict // from the first key on that no Go map can have
	for range t.Count {
		key, err := d.next()
		if err != nil {
			return nil, err
		}
		if dict != nil || !isKey(key.Kind) {
			if dict == nil {
				dict = m.dict()
			}
			if dict, err = d.item(dict, key); err != nil {
				return nil, err
			}
			continue
		}
		name, err := d.any(key)
		if err != nil {
			return nil, err
		}
		value, err := d.nextAny()
		if err != nil {
			return nil, atKey(err, name)
		}
		m.set(name, value)
	}
	switch {
	case dict != nil:
		return d.meaning(dict, dict.Get)
	case m.others != nil:
		return d.meaning(m.others, m.get)
	}
	return d.meaning(m.texts, m.get)
}

// anyMap is a map[string]any, and from the first key on that is no text a map[any]any.
type anyMap struct {
	texts  map[string]any
	others map[any]any
}

func (m *anyMap) get(key string) (value any, ok bool) {
	if m.others != nil {
		value, ok = m.others[key]
		return value, ok
	}
	value, ok = m.texts[key]
	return value, ok
}

func (m *anyMap) set(key, value any) {
	name, isText := key.(string)
	if isText && m.others == nil {
		m.texts[name] = value
		return
	}
	if m.others == nil {
		m.others = make(map[any]any, len(m.texts)+1)
		for name, value := range m.texts {
			m.others[name] = value
		}
	}
	m.others[key] = value
}

// dict returns the map as a dictionary, in the order of the keys' text.
func (m *anyMap) dict() python.Dict {
	dict := make(python.Dict, 0, len(m.texts)+len(m.others)+1)
	if m.others != nil {
		for key, value := range m.others {
			dict = append(dict, python.Item{Key: key, Value: value})
		}
	} else {
		for key, value := range m.texts {
			dict = append(dict, python.Item{Key: key, Value: value})
		}
	}
	slices.SortFunc(dict, func(a, b python.Item) int { return cmp.Compare(fmt.Sprint(a.Key), fmt.Sprint(b.Key)) })
	return dict
}

func (d *Decoder) dict(t pack.Token) (python.Dict, error) {
	dict := make(python.Dict, 0, t.Count)
	for range t.Count {
		key, err := d.next()
		if err != nil {
			return nil, err
		}
		if dict, err = d.item(dict, key); err != nil {
			return nil, err
		}
	}
	return dict, nil
}

// item reads the rest of an entry that begins with a key, and appends the entry.
func (d *Decoder) item(dict python.Dict, key pack.Token) (python.Dict, error) {
	name, err := d.any(key)
	if err != nil {
		return nil, atKey(err, "key")
	}
	if !python.Hashable(name) {
		return nil, atKey(fmt.Errorf("%T as the key of a dict, or in one", name), name)
	}
	value, err := d.nextAny()
	if err != nil {
		return nil, atKey(err, name)
	}
	return append(dict, python.Item{Key: name, Value: value}), nil
}

// meaning returns the value of the map m in the format, or m.
func (d *Decoder) meaning(m any, get func(string) (any, bool)) (any, error) {
	v, ok, err := d.format.Map(get)
	if err != nil {
		return nil, err
	}
	if ok {
		return v, nil
	}
	return m, nil
}

func (d *Decoder) ext(t pack.Token) (any, error) {
	if t.Type == timestamp {
		return timeOf(t.Data)
	}
	return d.format.Ext(t.Type, t.Data)
}

func timeOf(data []byte) (time.Time, error) {
	var seconds, nanoseconds uint64
	switch len(data) {
	case 4:
		seconds = big(data)
	case 8:
		both := big(data)
		nanoseconds, seconds = both>>34, both&(1<<34-1)
	case 12:
		nanoseconds, seconds = big(data[:4]), big(data[4:])
	default:
		return time.Time{}, fmt.Errorf("a timestamp of %d bytes", len(data))
	}
	if nanoseconds >= 1e9 {
		return time.Time{}, fmt.Errorf("a timestamp with %d nanoseconds", nanoseconds)
	}
	t := time.Unix(int64(seconds), int64(nanoseconds)).UTC()
	if !datetime(t) {
		return time.Time{}, fmt.Errorf("a timestamp of %d seconds, out of the years 1 to %d", int64(seconds), maxYear)
	}
	return t, nil
}

func big(b []byte) (n uint64) {
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n
}
