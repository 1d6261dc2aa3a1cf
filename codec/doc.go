// Package codec turns values into payload bytes and back.
//
// A payload is one encoded value. The store keeps it in shared memory, a
// handle carries the [ID] of its [Serializer], and a consumer decodes it in
// place. Three serializers are built in:
//
//	raw      1  []byte and string, the bytes as they are
//	msgpack  2  any Go value, MessagePack; the default
//	tensor   3  Tensor: dtype, shape, and data aligned to 64 bytes
//
// A program adds its own with [Registry.Register], with IDs from
// [FirstUserID] on. Both ends of a bus must agree on name, ID and meaning.
// The IDs between are those of serializers in packages below this one, such
// as [IDOmni], which a program registers in the same way; a bus itself registers that
// of [IDBundle], for values with tensors in them.
//
// # Copies
//
// A serializer that knows the encoded size up front implements [Sizer]: the
// caller reserves that many bytes and the value is encoded in place. A
// producer of tensors can go further and skip the encoding altogether: it
// reserves [TensorSize] bytes, calls [NewTensorIn] and computes into the
// result.
//
//	              encoding             decoding
//	raw, []byte   one copy, in place   view of the payload
//	raw, string   one copy, in place   copy
//	msgpack       encoded, then moved  copy
//	tensor        one copy, or none    view of the payload
//
// A view aliases the payload. It is valid for as long as the payload is: in
// a store, until the lease is released. It must not be written to: a
// consumer's mapping is read-only, and a write through a view kills the
// process. [Tensor.Clone] and [bytes.Clone] make a copy that outlives the
// lease.
//
// # Trust
//
// Payload bytes come from other processes and are not trusted. Decoding
// never panics and never overruns the payload; bad bytes are a typed error
// that wraps [ErrMalformed], [ErrLimit] or [ErrMismatch]. The producer may
// even rewrite the payload while it is decoded: headers are read once and
// checked before use, and msgpack decodes from a private copy. A view shows
// later writes of such a producer to its data.
//
// Memory is bounded by the payload. Decoding msgpack takes at most
// [MaxMsgpackDepth] levels and [MaxMsgpackValues] values, and every declared
// length is backed by input bytes before anything is allocated for it. The
// Go type of the target multiplies that: one byte of payload can fill one element
// of a slice, however large that element's type is.
//
// Values to encode are the program's own. A cyclic value overflows the stack,
// as it does in any recursive encoder.
//
// # Concurrency and order
//
// Serializers keep no state between calls and are safe for concurrent use,
// and so is a [Registry], in which lookups take no lock. The package starts
// no goroutine, orders nothing and leaves nothing behind after a crash.
package codec
