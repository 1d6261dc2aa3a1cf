// Package wire turns the messages of the node protocol into bytes and back.
// docs/protocol.md defines their order, meaning and layout. The package does no I/O; package peer
// sends and receives.
//
// # Use
//
// [Append] adds a message to a packet. On the other side [Next] cuts a packet into messages and
// [Parse] reads one:
//
//	for len(packet) > 0 {
//		header, body, rest, err := wire.Next(packet)
//		...
//		message, err := wire.Parse(header, body)
//		...
//		packet = rest
//	}
//
// [Decode] parses into a struct of the caller's, which may be reused for the next message: it
// allocates only new text. Append never keeps the message, and allocates nothing if the slice has
// space.
//
// There is one version of the protocol, [Version]; [Negotiate] reports whether the peer speaks it.
//
// A struct declares each message: its kind, its direction, and its fields in the order of the wire.
// Command wiregen, in the folder of that name, documents the form, and generates the code that
// writes and reads them; `go generate` runs it. testdata/vectors.json holds messages as bytes and
// as fields, for tests of clients in other languages; testdata/README.md describes it.
//
// # Trust
//
// Bytes from outside never cause a panic, and never make the decoder allocate more than a small
// multiple of their length: every count is compared with the remaining bytes before the decoder
// allocates for it. A decoded message is well formed, no more: all bounds hold, all text is UTF-8,
// every enumerated value is one of its list, and attributes have different names that are not
// empty. The bus checks whether a token, a task or an edge exists. Text may hold any character, so
// a program that prints it must quote it.
//
// Reserved fields are written as 0 and ignored by readers. A message that is longer than its fields
// is accepted: later versions add fields at the end only. A message of unknown kind is an error,
// unless its header allows a receiver to skip it: see [Header].
//
// # Ownership, ordering and concurrency
//
// The bytes in [Deliver].Payload, [Put].Payload, [Place].Payload,
// [Fetched].Payload, [Call].Arguments, [Reply].Piece and [Reported].Piece are those of the packet,
// not copies: they are valid until the caller reuses the packet's buffer.
// Everything else in a message belongs to the message.
//
// The package keeps no state. Its functions may be called from any goroutine, with different
// messages. Only the messages of one packet are ordered.
//
// # After a crash
//
// Nothing stays behind.
package wire
