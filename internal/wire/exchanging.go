package wire

// Place puts a payload under a key of an edge. The payload lies in an offered segment, or in the
// message.
//
//wire:message 80 to the host
type Place struct {
	Token   uint32
	Owner   uint32 `wire:"reserved=4"` // a number of the client's, for `cleanup`
	Put     uint32 // number for `returned`, of a payload in an offered segment
	Flags   uint8  `wire:"reserved=3"` // 4 inline, 32 own segment
	Segment uint32
	Offset  uint64
	Size    uint64 // of the payload, in bytes
	From    string // the edge
	To      string
	Key     string `wire:"most=MaxExchangeKey"`
	Payload []byte `wire:"inline"` // if it is inline; else empty
}

// Placed answers Place: a client that asks for the key finds the payload.
//
//wire:message 81 to the client
type Placed struct {
	Token uint32 `wire:"reserved=4"`
	Entry uint64 // the payload's number: never 0, and never another's
}

// Flags of a Fetch.
const (
	FetchWait = 1 // wait until a payload is placed
)

// Fetch asks for the payload under a key of an edge.
//
//wire:message 82 to the host
type Fetch struct {
	Token uint32
	Flags uint8  `wire:"reserved=3"` // 1: wait until a payload is placed
	Entry uint64 // the payload's number; 0: any
	From  string
	To    string
	Key   string `wire:"most=MaxExchangeKey"`
}

// Fetched answers Fetch: the payload is the client's, until Finish.
//
//wire:message 83 to the client
type Fetched struct {
	Token    uint32
	Delivery uint32 // its number, for `finish`
	Flags    uint8  `wire:"reserved=3"` // 4 inline
	Segment  uint32 // where the payload lies, if it is not inline
	Offset   uint64
	Size     uint64 // of the payload, in bytes
	Payload  []byte `wire:"inline"` // if it is inline; else empty
}

// Cancel ends the wait of a Fetch: the host answers it at once.
//
//wire:message 84 to the host
type Cancel struct {
	Token uint32
}

// Cleanup takes back the payloads of an owner that no client has fetched: under exactly this
// key, on any edge, or all of them.
//
//wire:message 85 to the host
type Cleanup struct {
	Token uint32
	Owner uint32
	Key   string `wire:"most=MaxExchangeKey"` // empty: all keys
}

// Cleaned answers Cleanup.
//
//wire:message 86 to the client
type Cleaned struct {
	Token uint32
	Count uint32 // of payloads that were taken back
}
