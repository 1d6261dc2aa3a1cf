package kv

import "github.com/omnibus-runtime/omnibus/codec"

// Limits of a frame, for both directions.
const (
	// MaxHeaderBytes bounds the header. A hundred thousand blocks take less
	// than one MiB.
	MaxHeaderBytes = 4 << 20
	// MaxHeaderDepth bounds the nesting of the header's objects and arrays,
	// of which the header is the first.
	MaxHeaderDepth = 64
	// MaxLayers bounds the layers.
	MaxLayers = 4096
)

// Payload is the KV cache of one request, or the part of it that one rank
// holds.
type Payload struct {
	RequestID string
	// Blocks are the IDs of the blocks that the cache was taken from.
	Blocks []int64
	// Metadata is what JSON can hold. After decoding, integers are int64,
	// other numbers float64, and numbers that fit neither json.Number.
	Metadata map[string]any
	// Layers are in the order of the model.
	Layers []Layer
}

// Layer is one layer of a KV cache. Either tensor is nil where the layer has
// none.
type Layer struct {
	Key   *codec.Tensor
	Value *codec.Tensor
}
