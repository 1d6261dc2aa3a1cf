// Package bundle encodes one nested value with tensors in it, at any
// depth. The data of each tensor lies at a multiple of 64 bytes of the payload,
// or in a *place* outside it, such as a chunk of a GPU's memory, which the payload
// describes. The bytes are described in layout.go.
//
//	r := codec.Default()
//	err := r.Register(bundle.Serializer{})
//
// A bus registers it itself.
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
// Values besides tensors, and the types they are decoded into, are as in
// package codec/omni, with the same struct tags, keys of maps, views of binary data, and
// refusals. A tensor that is in the value several times is written several times.
//
// # Encoding in place
//
//	p, err := bundle.NewPlan(v)      // walks through v: p.Tensors
//	p.Tensors[i].Place = 1           // those that lie elsewhere; the others in the payload
//	p.Places = []bundle.Place{...}
//	n, err := p.Size()               // reserve n bytes
//	err = p.EncodeInto(dst)          // copies codec.Tensors, once
//	copyFromDevice(p.Tensors[j].Data) // data of a Source that lies in the payload
//
// # Decoding
//
// [Open] reads the tables and allocates no more than a small multiple of their
// size. [Bundle.Decode] makes the value, in which a function of the caller may
// replace each tensor by another value; [Serializer] does both. Data is a view of the
// payload, valid for as long as the payload is and never to be written to.
//
// # Trust
//
// Payloads are not trusted, as everywhere in package codec. Every count, size and
// offset is checked against the bytes that are there, and those of tensors in a
// place against the size in the place's record: the code that opens the place checks
// that such memory exists, and that it is that large. Two tensors
// may share bytes of a place, never of the payload. A stride of 0 makes a tensor
// larger than the memory it lies in: code that packs such a tensor must bound it. Errors of
// a payload are a [*codec.PayloadError]. Bounds are [MaxPlaces], [MaxTensors],
// [codec.MaxDims] and those of MessagePack, [codec.MaxMsgpackDepth] and
// [codec.MaxMsgpackValues].
package bundle
