package kv

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/pack"
)

// layout says what goes where in a frame.
type layout struct {
	text   []byte // the header's JSON
	start  int    // of the data, a multiple of alignBytes
	placed []placed
	size   int
}

type placed struct {
	at   int // from the start of the data
	data []byte
}

func layoutOf(p *Payload) (layout, error) {
	if !utf8.ValidString(p.RequestID) {
		return layout{}, wrong("rid", codec.ErrType, "not UTF-8")
	}
	if len(p.Layers) > MaxLayers {
		return layout{}, beyondLimit("nl", "%d layers, at most %d", len(p.Layers), MaxLayers)
	}
	var l layout
	tensors := make([]descriptor, 0, 2*len(p.Layers))
	end := 0
	place := func(prefix string, layer int, t *codec.Tensor) error {
		field := prefix + strconv.Itoa(layer)
		if t == nil {
			tensors = append(tensors, descriptor{Name: &field, Absent: true})
			return nil
		}
		if err := checkTensor(field, t); err != nil {
			return err
		}
		at := align(end)
		tensors = append(tensors, describe(field, layer, t, at))
		l.placed = append(l.placed, placed{at, t.Data})
		end = at + len(t.Data)
		return nil
	}
	for i, layer := range p.Layers {
		if err := place(keyPrefix, i, layer.Key); err != nil {
			return layout{}, err
		}
	}
	for i, layer := range p.Layers {
		if err := place(valuePrefix, i, layer.Value); err != nil {
			return layout{}, err
		}
	}
	var err error
	if l.text, err = headerText(p, tensors); err != nil {
		return layout{}, err
	}
	l.start = align(lengthBytes + len(l.text))
	l.size = l.start + end
	return l, checkHeaderSize(uint64(l.start - lengthBytes))
}

func checkTensor(field string, t *codec.Tensor) error {
	if err := t.Validate(); err != nil {
		return fmt.Errorf("codec: %s: %s: %w", name, field, err)
	}
	if _, ok := carried[t.DType.String()]; !ok {
		return wrong(field, codec.ErrType, "elements of %v", t.DType)
	}
	if len(t.Data) == 0 {
		// torch.frombuffer, which vLLM-Omni reads with, refuses to make one.
		return wrong(field, codec.ErrType, "no elements; make it nil")
	}
	return nil
}

func describe(field string, layer int, t *codec.Tensor, at int) descriptor {
	index, dtype, offset, size := int64(layer), t.DType.String(), int64(at), int64(len(t.Data))
	return descriptor{
		Name: &field, Layer: &index, DType: &dtype, Shape: present(t.Shape), Offset: &offset, Size: &size,
	}
}

func headerText(p *Payload, tensors []descriptor) ([]byte, error) {
	meta := map[string]any{}
	if len(p.Metadata) > 0 {
		meta = exact(p.Metadata).(map[string]any)
	}
	text, err := json.Marshal(header{
		RequestID: p.RequestID, Blocks: present(p.Blocks), Metadata: meta, Tensors: tensors, Layers: len(p.Layers),
	})
	if err != nil { // all but the metadata is made here
		return nil, wrong("meta", codec.ErrType, "%v", err)
	}
	return text, checkHeader(text)
}

// present returns a list that is null in no JSON.
func present[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// exact returns v with numbers that read back as the type they have:
// encoding/json writes the float 1 as the integer 1, and Python tells them
// apart.
func exact(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			out[key] = exact(value)
		}
		return out
	case []any:
		out := slices.Clone(v)
		for i := range out {
			out[i] = exact(out[i])
		}
		return present(out)
	case float32:
		return exact(float64(v))
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return v // encoding/json says that it has no such number
		}
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
		return json.Number(text)
	}
	return v
}

// write fills dst, which has the layout's size. Reserved memory holds what was
// there before, so every byte is written.
func (l layout) write(dst []byte) {
	binary.BigEndian.PutUint32(dst, uint32(l.start-lengthBytes))
	end := lengthBytes + copy(dst[lengthBytes:], l.text)
	for i := range dst[end:l.start] {
		dst[end+i] = ' '
	}
	end = l.start
	for _, p := range l.placed {
		at := l.start + p.at
		clear(dst[end:at])
		end = at + pack.Copy(dst[at:], p.data)
	}
}
