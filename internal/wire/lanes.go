package wire

// Lanes says that the client can exchange deliveries with other clients directly.
//
//wire:message 64 to the host; the client can exchange deliveries with other clients
type Lanes struct{}

// Introduce connects two clients. Its descriptors are a connection to the peer, on which both send
// Lane, and the peer's pidfd.
//
//wire:message 65 to the client; two descriptors: one end of a socket pair, the peer's pidfd
type Introduce struct {
	Peer uint32 // the peer's number
	PID  uint32
	Side uint8  `wire:"0..1,reserved=3"` // 0 for one of the two, 1 for the other
	Name string // of the peer, for people
}

// Expect says that deliveries of an input of a task, or of a result of a request, may come from a
// peer.
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

// Direct says that emissions on an edge may go to a peer, which expects them.
//
//wire:message 68 to the client
type Direct struct {
	Source     uint32
	Edge       uint16 // index among the stage's outputs, or among `inputs`
	PeerEdge   uint16 // index as the peer knows it
	Peer       uint32
	PeerSource uint32 // the source as the peer knows it
}

// Streamed ends a stream of which a part went to a peer, with its length. Source and Edge are the
// receiver's.
//
//wire:message 69 both, and to a peer
type Streamed struct {
	Source     uint32
	Edge       uint16 `wire:"reserved=2"`
	Deliveries uint64 // of the whole stream; a bare end is none
	Bytes      uint64 // of the payloads that went to the peer
}

// Kinds 70 to 73 belonged to removed messages, and stay unused.

// Report asks a client for its deliveries on direct paths, which the host does not see: at once,
// and for Millis milliseconds a few times a second if they have changed.
//
//wire:message 74 to the client
type Report struct {
	Millis uint32 // duration, from now on
}

// Reported lists a client's deliveries on direct paths, in one piece or more, with flag ReplyMore
// on all but the last. It replaces the report before.
//
//wire:message 75 to the host
type Reported struct {
	Flags uint8  // 1: more pieces follow
	Piece []byte `wire:"most=MaxPiece"` // of JSON
}

// Lane brings one side's segment of the two lanes of a connection.
//
//wire:message 76 both, and to a peer; one descriptor: a segment
type Lane struct {
	Capacity uint32 // bytes of the lane in which this side sends: 65,536
}

// After begins a packet by the socket that was sent after frames in the lane. Alone in its packet
// it wakes the receiver.
//
//wire:message 77 both, and to a peer
type After struct {
	Frames uint64 // sent before by this side, since the connection began
}
