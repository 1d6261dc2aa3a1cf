// Package proto encodes and decodes Protocol Buffers messages. It is a
// serializer for programs whose values are messages already; it needs
// google.golang.org/protobuf and the generated code of the schema.
//
//	registry := codec.Default()
//	registry.Register(proto.Serializer{})
//
// A bus whose values are messages takes it as its Options.Serializer.
//
// # Encoding
//
// The payload is the wire format of one message, with nothing around it: both
// ends know the type. A message is encoded in place, since its size is known
// before ([codec.Sizer]). Its fields are in the order that is fastest: equal
// messages need not have equal payloads.
//
// # Decoding
//
// The target is a message, which is reset, or a pointer to a message pointer,
// which is set to a new message, as [codec.Decode] does it:
//
//	event, err := codec.Decode[*pb.Event](proto.Serializer{}, payload)
//
// The result shares no memory with the payload, so bytes fields are copied.
// Large ones are better sent as a tensor or raw.
//
// # Trust
//
// Payloads are decoded from a private copy, which their writer
// cannot change meanwhile, into no more than [MaxDepth] nested
// messages. A payload has at most [MaxBytes] bytes, in both directions. Bytes
// that are no message are a [codec.ErrMalformed], those beyond a limit a
// [codec.ErrLimit], and a message without a required field a
// [codec.ErrMismatch].
//
// As everywhere in Protocol Buffers, one byte can stand for a whole element:
// a list of empty messages takes many times its payload. Encoding does not check
// the depth: only the consumer finds that a message is too deep.
//
// Serializer keeps no state and is safe for concurrent use.
package proto
