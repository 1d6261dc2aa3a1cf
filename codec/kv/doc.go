// Package kv encodes and decodes the frame in which vLLM-Omni moves the KV
// cache of a request from one stage to another. It is a serializer for
// programs that exchange such frames with Python stages; a bus between Go
// stages does not need it.
//
//	registry := codec.Default()
//	registry.Register(kv.Serializer{})
//
// A bus whose values are such frames takes it as its Options.Serializer.
//
// # Format
//
//	offset  size  field
//	     0  4     header_len, big endian
//	     4  …     header, JSON, header_len bytes
//	     …  …     data of the tensors
//
// The header is an object:
//
//	rid   the request's ID
//	bids  the IDs of its blocks
//	meta  metadata, an object
//	td    the tensors, first those named key_cache_N, then value_cache_N
//	nl    the number of layers
//
// and a tensor in it is one of
//
//	{"n": "key_cache_0", "i": 0, "d": "float16", "s": [7, 8, 64], "o": 0, "b": 7168}
//	{"n": "key_cache_1", "x": true}
//
// with name, layer, dtype, shape, offset behind the header and size in bytes;
// or without data, where a layer has none. Offsets need not be packed, and
// the header may end in spaces: this package puts every tensor at a multiple
// of 64 bytes of the payload by both. Python packs without any alignment, so
// [codec.View] of a tensor from there may be a [codec.ErrAlignment], which
// [codec.Tensor.Clone] cures. Bytes behind the last tensor are ignored, since
// shared memory comes in pages.
//
// The dtypes are those that both sides know: bool, uint8, int8 to int64,
// float16, bfloat16, float32 and float64, float8_e4m3fn, float8_e5m2, complex64 and
// complex128. PyTorch's other floats of eight bits have no place in a [codec.Tensor]; a
// frame with one is a [codec.ErrMismatch].
//
// # Copies
//
// Encoding writes each tensor once, to where it stays: the size is known
// before ([codec.Sizer]). Decoding copies the header and no tensor. Key and
// Value of a decoded [Layer] are views of the payload, valid for as long as
// it is, and not to be written to.
//
// # Trust
//
// Decoding bytes from elsewhere never panics and never overruns them. What is
// wrong is an error with the name of the field. The header is copied
// before it is looked at, so that its writer cannot change what was checked.
// It has at most [MaxHeaderBytes] bytes, [MaxHeaderDepth] levels and
// [MaxLayers] layers; one made to be costly takes some hundred times its size
// to decode. Tensors lie in the payload and do not overlap, so that
// together they are no larger than the payload, also after Clone.
//
// Serializer keeps no state and is safe for concurrent use.
package kv
