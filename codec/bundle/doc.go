// Package bundle is a payload of one nested value with tensors in it, at any
// depth. The data of each tensor lies at a multiple of 64 bytes of the payload,
// or in a *place* outside it, such as a chunk of a GPU's memory, of which the
// payload says where it is. The bytes are described in layout.go.
//
//	r := codec.Default()
//	err := r.Register(bundle.Serializer{})
//
// A bus registers it by itself.
//
// # Values
//
//	Go                                        decoded into an any
//	nil, bool, string, []byte                 the same
//	integers, floats                          int64 (uint64 beyond), float64
//	slices and arrays                         []any
//	maps, structs                             map[string]any (map[any]any, python.Dict)
//	time.Time                                 time.Time
//	codec.Tensor                              codec.Tensor
//	*Tensor, Source                           codec.Tensor, or *Tensor in a place
//
// What can be encoded besides tensors, and decoded into which types, is as in
// package codec/omni: struct tags, keys of maps, views of binary data, and what is
// refused. A tensor is written as often as it is in the value.
//
// # Encoding in place
//
//	p, err := bundle.NewPlan(v)      // walks through v: p.Tensors
//	p.Tensors[i].Place = 1           // those that lie elsewhere; the others in the payload
//	p.Places = []bundle.Place{...}
//	n, err := p.Size()               // reserve n bytes
//	err = p.EncodeInto(dst)          // copies codec.Tensors, once
//	copyFromDevice(p.Tensors[j].Data) // what is in the payload and was not at hand
//
// # Decoding
//
// [Open] reads the tables and allocates no more than a small multiple of their
// size. [Bundle.Decode] makes the value, in which a function of the caller
// replaces each tensor as it likes; [Serializer] does both. Data is a view of the
// payload, valid for as long as the payload is and never to be written to.
//
// # Trust
//
// Payloads are not trusted, as everywhere in package codec. Every count, size and
// offset is checked against the bytes that are there, and those of tensors in a
// place against the size that the place gives itself: whether there is such
// memory, and whether it is that large, is for whoever opens the place. Two tensors
// may share bytes of a place, never of the payload. A stride of 0 makes a tensor
// larger than the memory it lies in, which whoever packs it has to bound. Errors of
// a payload are a [*codec.PayloadError]. Bounds are [MaxPlaces], [MaxTensors],
// [codec.MaxDims] and those of MessagePack, [codec.MaxMsgpackDepth] and
// [codec.MaxMsgpackValues].
package bundle
