package wire

import "math"

// The bounds of the protocol. Both sides refuse a message that exceeds one.
const (
	// MaxPacket bounds a packet, in bytes: all its messages together.
	MaxPacket = 64 << 10
	// MaxDescriptors bounds the descriptors of a packet.
	MaxDescriptors = 8

	// MaxName bounds the keys of emissions and the names of stages, edges, methods, clients and
	// buses, in bytes.
	MaxName = 200
	// MaxExchangeKey bounds the keys of the exchange, in bytes: with the affixes of its lock a key
	// is the name of a file, of at most 255.
	MaxExchangeKey = 237
	// MaxText bounds the text of an error, in bytes. [Append] cuts longer ones.
	MaxText = 4096
	// MaxInline bounds a payload that travels in a message, in bytes. A host
	// may allow less, and says so in [Welcome].
	MaxInline = 32 << 10
	// MaxPiece bounds the arguments of a call and one piece of its reply, in
	// bytes.
	MaxPiece = 60000
	// MaxAttrs bounds the attributes of one payload.
	MaxAttrs = 32
	// MaxAttrName bounds the name of an attribute, in bytes.
	MaxAttrName = 64
	// MaxAttrValue bounds the value of an attribute, in bytes.
	MaxAttrValue = 512
	// MaxTraceState bounds the state of a trace, in bytes.
	MaxTraceState = 512

	// MaxQuestions bounds the open questions of a client.
	MaxQuestions = 1024
	// MaxReturned is the number of puts that fit into one [Returned].
	MaxReturned = (MaxPacket - HeaderSize - 2) / 4
)

// The versions of the protocol that this package speaks: one.
const (
	Version    = 2
	VersionMin = Version
)

// Magic is the first field of a [Hello]: the bytes 01 'O' 'M' 'N' 'I' 'B' 'U' 'S'.
const Magic uint64 = 0x53554249_4e4d4f01

// LastingOwner is the Owner of a Place whose payload outlives the client, and of a Cleanup of such
// payloads of all clients.
const LastingOwner = math.MaxUint32

// AllEdges is the Edge of an emission on every edge of its source.
const AllEdges = 65535

// Negotiate returns the newest version that both sides speak, each of them all versions from its
// min to its max. ok is false if there is none.
func Negotiate(minA, maxA, minB, maxB uint16) (version uint16, ok bool) {
	version = min(maxA, maxB)
	if version < max(minA, minB) {
		return 0, false
	}
	return version, true
}

// maxInlineMessage bounds the messages that carry an inline payload: the
// largest fixed fields (those of Deliver), a key and the attributes.
const maxInlineMessage = HeaderSize + 64 +
	2 + MaxName +
	2 + MaxAttrs*(2+MaxAttrName+2+MaxAttrValue) +
	4 + MaxInline

// A message with a payload fits into a packet if each field is within its bound, so Append never
// fails for the sum of allowed fields.
var _ [MaxPacket - maxInlineMessage]struct{}
