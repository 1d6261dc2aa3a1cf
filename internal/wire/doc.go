// Package wire turns the messages of the node protocol into bytes and back.
// docs/protocol.md defines them: their order, their meaning and their layout.
// The package does no I/O; package peer sends and receives.
//
// # Use
//
// [Append] writes a message behind others in a packet. On the other side
// [Next] cuts a packet into messages and [Parse] reads one:
//
//	for len(packet) > 0 {
//		header, body, rest, err := wire.Next(packet)
//		...
//		message, err := wire.Parse(header, body)
//		...
//		packet = rest
//	}
//
// [Decode] is Parse into a struct that the caller has, and may use again for
// the next message: that allocates nothing but new text. Append never keeps
// the message, and allocates nothing when there is room.
//
// There is one version of the protocol, [Version]; [Negotiate] says whether the
// peer speaks it.
//
// Each message is a struct, which declares it: its kind, who sends it, and its fields in the
// order of the wire. Command wiregen, in the folder of that name, says how, and makes from the
// structs what writes and reads them, so that the two cannot disagree; `go generate` runs it.
// testdata/vectors.json holds messages in both forms, for clients in
// other languages to check themselves against; testdata/README.md describes it.
//
// # Trust
//
// Bytes from outside never panic, and never make the decoder allocate more
// than a small multiple of their length: every count is compared with the bytes
// that are left before anything is made for it. What passes is well formed, no
// more: all bounds hold, all text is UTF-8, every enumerated value is one of
// its list, and attributes have different names that are not empty. Whether a
// token, a task or an edge exists is for the bus to say. Text may hold any
// character, so whoever prints it quotes it.
//
// Fields that the protocol calls 0 or reserved are written as 0 and not looked
// at. A message that is longer than its fields is accepted: later versions add
// fields at the end only. A message of a kind that is not known is an error, unless its header
// says that a receiver can go on without it: see [Header].
//
// # Ownership, ordering and concurrency
//
// The bytes in [Deliver].Payload, [Put].Payload, [Place].Payload,
// [Fetched].Payload, [Call].Arguments, [Reply].Piece and [Reported].Piece are those of the packet, not copies: they
// are valid until the caller uses the packet's buffer for something else.
// Everything else in a message belongs to the message.
//
// The package keeps no state. Its functions may be called from any goroutine,
// with different messages. Nothing is ordered but the messages in one packet.
//
// # After a crash
//
// Nothing stays behind.
package wire
