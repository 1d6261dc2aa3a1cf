package python

// Slice is a Python slice; nil is None.
type Slice struct {
	Start, Stop, Step *int
}

// Dict is a Python dictionary in its order. Go's maps have none, so a value
// that must keep its bytes when it is decoded and encoded again is a Dict.
type Dict []Item

// Item is one entry of a [Dict].
type Item struct {
	Key, Value any
}

// Get returns the value of a text key. Of several entries with one key it is
// the last, as in Python.
func (d Dict) Get(key string) (value any, ok bool) {
	for i := len(d) - 1; i >= 0; i-- {
		if k, isText := d[i].Key.(string); isText && k == key {
			return d[i].Value, true
		}
	}
	return nil, false
}
