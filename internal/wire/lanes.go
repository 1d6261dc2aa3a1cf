package wire

// Lanes says that the client can exchange deliveries with others directly.
//
//wire:message 64 to the host; this client can exchange deliveries with others
type Lanes struct{}

// Introduce makes two clients known to each other. Its descriptors are a
// connection to the peer, on which both say Lane, and the peer's pidfd.
//
//wire:message 65 to the client; two descriptors: one end of a socket pair, the peer's pidfd
type Introduce struct {
	Peer uint32 // the peer's number
	PID  uint32
	Side uint8  `wire:"0..1,reserved=3"` // 0 for one of the two, 1 for the other
	Name string // of the peer, for people
}

// Expect says that deliveries may come from a peer: those of an input of a
// task, or of a result of a request.
//
//wire:message 66 to the client
type Expect struct {
	Source uint32
	Edge   uint16 `wire:"reserved=2"` // index among the stage's inputs, or among `results`
	Peer   uint32
}

// Expecting answers Expect.
//
//wire:message 67 to the host
type Expecting struct {
	Source uint32
	Edge   uint16 `wire:"reserved=2"`
}

// Direct says that what goes out on an edge may go to a peer, which expects it.
//
//wire:message 68 to the client
type Direct struct {
	Source     uint32
	Edge       uint16 // index among the stage's outputs, or among `inputs`
	PeerEdge   uint16 // index as the peer knows it
	Peer       uint32
	PeerSource uint32 // the source as the peer knows it
}

// Streamed says that a stream of which a part went to a peer has ended, and how
// long it was. Source and Edge are the receiver's.
//
//wire:message 69 both, and to a peer
type Streamed struct {
	Source     uint32
	Edge       uint16 `wire:"reserved=2"`
	Deliveries uint64 // of the whole stream; a bare end is none
	Bytes      uint64 // of the payloads that went to the peer
}

// The numbers 70 to 73 were those of messages that are gone, and stay unused.

// Report asks a client to say what it has under way that the host does not see: at once, and for
// this long a few times a second, as far as it changes.
//
//wire:message 74 to the client
type Report struct {
	Millis uint32 // from now on
}

// Reported is what a client has under way, in one piece or more, with flag ReplyMore on all but
// the last. It replaces the report before.
//
//wire:message 75 to the host
type Reported struct {
	Flags uint8  // 1: more pieces follow
	Piece []byte `wire:"most=MaxPiece"` // of JSON
}

// Lane brings one side's memory of the two lanes of a connection.
//
//wire:message 76 both, and to a peer; one descriptor: a segment
type Lane struct {
	Capacity uint32 // of the lane that this side sends in: 65,536
}

// After begins a packet that comes after frames of the lane beside the socket. Alone in
// its packet it wakes the receiver.
//
//wire:message 77 both, and to a peer
type After struct {
	Frames uint64 // that its sender has sent before, since the connection began
}
