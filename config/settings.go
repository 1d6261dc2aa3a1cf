package config

import (
	"bytes"
	"encoding/json"
)

// Settings are key-value pairs in the order of the file, handed on as they
// stand. A value is nil, bool, int64, uint64 (only above the largest int64),
// float64 (finite), string, []any or Settings. Keys are unique.
type Settings []Setting

// A Setting is one pair of [Settings].
type Setting struct {
	Key   string
	Value any
}

// Get returns the value at a path of keys, one for each level of nesting, and
// whether there is one.
func (s Settings) Get(path ...string) (any, bool) {
	var value any = s
	for _, key := range path {
		level, ok := value.(Settings)
		if !ok {
			return nil, false
		}
		if value, ok = level.get(key); !ok {
			return nil, false
		}
	}
	return value, true
}

func (s Settings) get(key string) (any, bool) {
	for _, setting := range s {
		if setting.Key == key {
			return setting.Value, true
		}
	}
	return nil, false
}

// Map returns a copy as ordinary maps, at every level, without the order.
func (s Settings) Map() map[string]any {
	m := make(map[string]any, len(s))
	for _, setting := range s {
		m[setting.Key] = plain(setting.Value)
	}
	return m
}

func plain(value any) any {
	switch v := value.(type) {
	case Settings:
		return v.Map()
	case []any:
		list := make([]any, len(v))
		for i, item := range v {
			list[i] = plain(item)
		}
		return list
	default:
		return v
	}
}

// MarshalJSON writes an object whose keys keep their order.
func (s Settings) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, setting := range s {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(setting.Key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(setting.Value)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// setting converts a node to the value that is handed on. It notes words that
// YAML 1.1 readers, PyYAML among them, take for booleans: handing "no" to a
// Python stage as text would make it true there.
func (c *checker) setting(n *node) any {
	switch n.kind {
	case kindList:
		list := make([]any, len(n.items))
		for i, item := range n.items {
			list[i] = c.setting(item)
		}
		return list
	case kindMap:
		return c.settings(n.entries)
	case kindString:
		if boolean, ok := yaml11Bools[n.value.(string)]; ok && n.plain {
			c.notef(n.pos, "%s is kept as text; PyYAML reads it as %s: write that, or quote it", n.value, boolean)
		}
	case kindNull, kindBool, kindInt, kindFloat: // the value is what is handed on
	}
	return n.value
}

func (c *checker) settings(entries []entry) Settings {
	s := make(Settings, len(entries))
	for i, e := range entries {
		s[i] = Setting{Key: e.key, Value: c.setting(e.value)}
	}
	return s
}

var yaml11Bools = map[string]string{
	"yes": "true", "Yes": "true", "YES": "true", "on": "true", "On": "true", "ON": "true",
	"no": "false", "No": "false", "NO": "false", "off": "false", "Off": "false", "OFF": "false",
}
