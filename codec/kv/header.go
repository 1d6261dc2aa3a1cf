package kv

import "github.com/omnibus-runtime/omnibus/codec"

const (
	lengthBytes = 4  // header_len
	alignBytes  = 64 // of tensors within the payload

	keyPrefix   = "key_cache_"
	valuePrefix = "value_cache_"
)

// header is the JSON header as it is written.
type header struct {
	RequestID string         `json:"rid"`
	Blocks    []int64        `json:"bids"`
	Metadata  map[string]any `json:"meta"`
	Tensors   []descriptor   `json:"td"`
	Layers    int            `json:"nl"`
}

// descriptor is a tensor in the header. Pointers tell what is missing from
// what is zero.
type descriptor struct {
	Name   *string `json:"n,omitempty"`
	Layer  *int64  `json:"i,omitempty"`
	DType  *string `json:"d,omitempty"`
	Shape  []int   `json:"s,omitzero"` // that of a scalar is empty and not nil
	Offset *int64  `json:"o,omitempty"`
	Size   *int64  `json:"b,omitempty"`
	Absent bool    `json:"x,omitempty"`
}

// carried are the element types that both a frame and a codec.Tensor have.
var carried = map[string]codec.DType{}

func init() {
	for _, d := range []codec.DType{
		codec.DTypeBool, codec.DTypeUint8, codec.DTypeInt8, codec.DTypeInt16, codec.DTypeInt32, codec.DTypeInt64,
		codec.DTypeFloat16, codec.DTypeBFloat16, codec.DTypeFloat32, codec.DTypeFloat64,
		codec.DTypeFloat8E4M3FN, codec.DTypeFloat8E5M2, codec.DTypeComplex64, codec.DTypeComplex128,
	} {
		carried[d.String()] = d
	}
}

// depthOf returns how deep the arrays and objects of JSON text are nested. Of
// other text it returns some number.
func depthOf(text []byte) int {
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

// checkHeader refuses headers beyond the limits.
func checkHeader(text []byte) error {
	if depth := depthOf(text); depth > MaxHeaderDepth {
		return beyondLimit("header", "%d levels, at most %d", depth, MaxHeaderDepth)
	}
	return nil
}

func checkHeaderSize(size uint64) error {
	if size > MaxHeaderBytes {
		return beyondLimit("header_len", "%d bytes, at most %d", size, MaxHeaderBytes)
	}
	return nil
}

func align(n int) int { return (n + alignBytes - 1) &^ (alignBytes - 1) }
