package wire

// Offer brings the descriptor of a segment of the client's, which the host reads.
//
//wire:message 41 to the host; one descriptor
type Offer struct {
	Segment uint32
	Bytes   uint64
}

// Put emits a payload that lies in an offered segment, or in the message.
//
//wire:message 42 to the host
type Put struct {
	Put      uint32 // its number, for `returned`
	Source   uint32
	Delivery uint32
	Edge     uint16
	Flags    uint8 `wire:"reserved=1"` // 1 last, 4 inline, 16 forward, 32 own segment
	Codec    uint32
	Attempt  uint32
	Segment  uint32
	Offset   uint64
	Size     uint64 // of the payload, in bytes
	Key      string
	Attrs    map[string]string
	Payload  []byte `wire:"inline"` // if it is inline; else empty
}

// Returned says that all consumers are done with some puts.
//
//wire:message 43 to the client
type Returned struct {
	Puts []uint32 // at most 16,381
}

// SpentBytes is the flag of a Spent that returns the credit for the bytes too.
const SpentBytes = 1

// Spent returns the credit of a put in the windows while its payload is still needed: Returned
// comes later.
//
//wire:message 44 to the client
type Spent struct {
	Put   uint32
	Flags uint8 // 1: its bytes too
}
