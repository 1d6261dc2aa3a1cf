package connector

import (
	"encoding/base64"
	"fmt"
)

// Metadata is the result of a Put, for the Get that follows it: a small map of text, numbers, bytes
// and maps of those. The control plane carries it in MessagePack or JSON (bytes as base64). All
// types share these keys:
//
//	size          bytes of the encoded value
//	inline_bytes  the encoded value itself, if it is small
type Metadata map[string]any

const (
	metaSize   = "size"
	metaInline = "inline_bytes"
	metaShm    = "shm"  // of segments: a map with the segment's
	metaName   = "name" // name
)

// For returns the metadata of one key. vLLM-Omni may wrap the metadata of several keys as {key:
// metadata}.
func (m Metadata) For(key string) Metadata {
	wrapped, ok := asMap(m[key])
	if _, named := wrapped[metaName].(string); !ok || key == metaShm && named {
		return m // the key itself is "shm", and the map describes a segment
	}
	return wrapped
}

// Map returns a map within the metadata, nil if there is none.
func (m Metadata) Map(key string) Metadata {
	inner, _ := asMap(m[key])
	return inner
}

func asMap(v any) (Metadata, bool) {
	switch m := v.(type) {
	case Metadata:
		return m, true
	case map[string]any:
		return m, true
	}
	return nil, false
}

// Text returns a text within the metadata.
func (m Metadata) Text(key string) (string, error) {
	if s, ok := m[key].(string); ok {
		return s, nil
	}
	return "", fmt.Errorf("%w: %q is %s, not text", ErrMetadata, key, describe(m[key]))
}

// Int returns a whole number of at least 0 within the metadata, of any numeric type.
func (m Metadata) Int(key string) (int64, error) {
	n, ok := wholeNumber(m[key])
	if !ok || n < 0 {
		return 0, fmt.Errorf("%w: %q is %s, not a whole number of at least 0", ErrMetadata, key, describe(m[key]))
	}
	return n, nil
}

// Bytes returns bytes within the metadata: a []byte, or the base64 text that JSON carries.
func (m Metadata) Bytes(key string) ([]byte, error) {
	switch v := m[key].(type) {
	case []byte:
		return v, nil
	case string:
		if b, err := base64.StdEncoding.DecodeString(v); err == nil {
			return b, nil
		}
	}
	return nil, fmt.Errorf("%w: %q is %s, not bytes or base64", ErrMetadata, key, describe(m[key]))
}

func describe(v any) string {
	switch v.(type) {
	case nil:
		return "missing"
	case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float64:
		return fmt.Sprintf("the number %v", v)
	}
	return fmt.Sprintf("of type %T", v)
}

// inline returns the value within the metadata, if there is one.
func (m Metadata) inline() (payload []byte, ok bool, err error) {
	if _, ok := m[metaInline]; !ok {
		return nil, false, nil
	}
	payload, err = m.Bytes(metaInline)
	if err != nil {
		return nil, true, err
	}
	if _, hasSize := m[metaSize]; hasSize {
		size, err := m.Int(metaSize)
		if err != nil {
			return nil, true, err
		}
		if size != int64(len(payload)) {
			return nil, true, fmt.Errorf("%w: %d bytes inline, and a size of %d", ErrMetadata, len(payload), size)
		}
	}
	return payload, true, nil
}
