package kv

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/omnibus-runtime/omnibus/codec"
)

func decode(src []byte) (Payload, error) {
	text, data, err := split(src)
	if err != nil {
		return Payload{}, err
	}
	var fields map[string]json.RawMessage // a struct would take "RID" for "rid"
	if err := parse("header", text, &fields); err != nil {
		return Payload{}, err
	}
	var p Payload
	var tensors []json.RawMessage
	var layers int64
	for _, f := range []struct {
		name     string
		into     any
		nullable bool // Python's None
	}{
		{"rid", &p.RequestID, false},
		{"bids", &p.Blocks, true},
		{"meta", (*metadata)(&p.Metadata), true},
		{"td", &tensors, false},
		{"nl", &layers, false},
	} {
		raw, ok := fields[f.name]
		switch {
		case !ok:
			return Payload{}, malformed(f.name, "missing")
		case !f.nullable && string(raw) == "null":
			return Payload{}, malformed(f.name, "null")
		}
		if err := parse(f.name, raw, f.into); err != nil {
			return Payload{}, err
		}
	}
	switch {
	case layers < 0:
		return Payload{}, malformed("nl", "%d layers", layers)
	case layers > MaxLayers:
		return Payload{}, beyondLimit("nl", "%d layers, at most %d", layers, MaxLayers)
	}
	p.Layers, err = readTensors(tensors, int(layers), data)
	return p, err
}

// split returns a private copy of the header, and the data as it lies.
func split(src []byte) (text, data []byte, err error) {
	if len(src) < lengthBytes {
		return nil, nil, malformed("header_len", "%d bytes of %d", len(src), lengthBytes)
	}
	size := uint64(binary.BigEndian.Uint32(src)) // read once
	if have := uint64(len(src) - lengthBytes); size > have {
		return nil, nil, malformed("header_len", "%d bytes, and %d follow", size, have)
	}
	if err := checkHeaderSize(size); err != nil {
		return nil, nil, err
	}
	end := lengthBytes + int(size)
	text = bytes.Clone(src[lengthBytes:end])
	if !utf8.Valid(text) {
		return nil, nil, malformed("header", "not UTF-8")
	}
	return text, src[end:], checkHeader(text)
}

// parse reads one JSON value into v.
func parse(field string, text []byte, v any) error {
	err := json.Unmarshal(text, v)
	if err == nil {
		return nil
	}
	if mistyped, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if mistyped.Field != "" {
			field += "." + mistyped.Field
		}
		return malformed(field, "a JSON %s", mistyped.Value)
	}
	return malformed(field, "%v", err)
}

// metadata is a map in which numbers keep their type. See Payload.Metadata.
type metadata map[string]any

// UnmarshalJSON implements json.Unmarshaler.
func (m *metadata) UnmarshalJSON(text []byte) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode((*map[string]any)(m)); err != nil {
		return err
	}
	typed(map[string]any(*m))
	return nil
}

// typed replaces the numbers in v, which is a map, a list or another JSON
// value.
func typed(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = typed(v[key])
		}
	case []any:
		for i := range v {
			v[i] = typed(v[i])
		}
	case json.Number:
		if strings.ContainsAny(string(v), ".eE") {
			if f, err := v.Float64(); err == nil {
				return f
			}
		} else if n, err := v.Int64(); err == nil {
			return n
		}
	}
	return v
}

// span is the place of a tensor in the data.
type span struct {
	field       string
	offset, end int
}

func readTensors(list []json.RawMessage, layers int, data []byte) ([]Layer, error) {
	out := make([]Layer, layers)
	var spans []span
	for i, raw := range list {
		field := fmt.Sprintf("td[%d]", i)
		var d descriptor
		if err := parse(field, raw, &d); err != nil {
			return nil, err
		}
		if d.Absent {
			continue
		}
		slot, err := d.slot(field, out)
		if err != nil {
			return nil, err
		}
		s, err := d.span(field, len(data))
		if err != nil {
			return nil, err
		}
		if *slot, err = d.tensor(field, data[s.offset:s.end:s.end]); err != nil {
			return nil, err
		}
		if s.offset < s.end {
			spans = append(spans, s)
		}
	}
	return out, checkOverlap(spans)
}

// slot returns where in the layers the tensor belongs.
func (d *descriptor) slot(field string, layers []Layer) (**codec.Tensor, error) {
	if d.Name == nil {
		return nil, malformed(field+".n", "missing")
	}
	number, isKey := strings.CutPrefix(*d.Name, keyPrefix)
	number, isValue := strings.CutPrefix(number, valuePrefix)
	if isKey == isValue {
		return nil, malformed(field+".n", "%.40q is neither %sN nor %sN", *d.Name, keyPrefix, valuePrefix)
	}
	// The index counts before the name, as for vLLM-Omni.
	index, err := strconv.ParseUint(number, 10, 31)
	if d.Layer != nil {
		index, err = uint64(*d.Layer), nil // of one below 0, more than there are
	}
	if err != nil {
		return nil, malformed(field+".n", "%.40q has no layer, and there is no index", *d.Name)
	}
	if index >= uint64(len(layers)) {
		return nil, malformed(field+".i", "layer %d of %d", int64(index), len(layers))
	}
	slot := &layers[index].Key
	if isValue {
		slot = &layers[index].Value
	}
	if *slot != nil {
		return nil, malformed(field+".n", "a second %s", *d.Name)
	}
	return slot, nil
}

func (d *descriptor) span(field string, have int) (span, error) {
	switch {
	case d.Offset == nil:
		return span{}, malformed(field+".o", "missing")
	case d.Size == nil:
		return span{}, malformed(field+".b", "missing")
	case *d.Offset < 0 || *d.Offset > int64(have):
		return span{}, malformed(field+".o", "offset %d in %d bytes of data", *d.Offset, have)
	case *d.Size < 0 || *d.Size > int64(have)-*d.Offset:
		return span{}, malformed(field+".b", "%d bytes at offset %d in %d bytes of data", *d.Size, *d.Offset, have)
	}
	return span{field, int(*d.Offset), int(*d.Offset + *d.Size)}, nil
}

func (d *descriptor) tensor(field string, data []byte) (*codec.Tensor, error) {
	switch {
	case d.DType == nil:
		return nil, malformed(field+".d", "missing")
	case d.Shape == nil:
		return nil, malformed(field+".s", "missing")
	}
	dtype, ok := carried[*d.DType]
	if !ok {
		return nil, wrong(field+".d", codec.ErrMismatch, "no dtype %.40q", *d.DType)
	}
	t := &codec.Tensor{DType: dtype, Shape: d.Shape, Data: data}
	if err := t.Validate(); err != nil {
		return nil, malformed(field+".s", "%v", err)
	}
	return t, nil
}

// checkOverlap refuses bytes that belong to two tensors.
func checkOverlap(spans []span) error {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.offset, b.offset) })
	for i := 1; i < len(spans); i++ {
		if before := spans[i-1]; spans[i].offset < before.end {
			return malformed(spans[i].field+".o", "offset %d is within %s", spans[i].offset, before.field)
		}
	}
	return nil
}
