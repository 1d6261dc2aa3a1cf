package wire

// Lanes says that the client can exchange deliveries with others directly.
type Lanes struct{}

func (m *Lanes) fields(c *coder) { c.begin(KindLanes) }

// Introduce makes two clients known to each other. Its descriptors are a
// connection to the peer, on which both say Lane, and the peer's pidfd.
type Introduce struct {
	Peer uint32 // the peer's number
	PID  uint32
	Side uint8  // 0 for one of them, 1 for the other
	Name string // of the peer, for people
}

func (m *Introduce) fields(c *coder) {
	c.begin(KindIntroduce)
	c.u32("peer", &m.Peer)
	c.u32("pid", &m.PID)
	c.enum("side", &m.Side, 0, 1)
	c.zeros(3)
	c.str("name", &m.Name, MaxName)
}

// Expect says that deliveries may come from a peer: those of an input of a
// task, or of a result of a request.
type Expect struct {
	Source uint32
	Edge   uint16 // index among the stage's inputs, or among Welcome.Results
	Peer   uint32
}

func (m *Expect) fields(c *coder) {
	c.begin(KindExpect)
	c.u32("source", &m.Source)
	c.u16("edge", &m.Edge)
	c.zeros(2)
	c.u32("peer", &m.Peer)
}

// Expecting answers Expect.
type Expecting struct {
	Source uint32
	Edge   uint16
}

func (m *Expecting) fields(c *coder) {
	c.begin(KindExpecting)
	c.u32("source", &m.Source)
	c.u16("edge", &m.Edge)
	c.zeros(2)
}

// Direct says that what goes out on an edge may go to a peer, which expects it.
type Direct struct {
	Source     uint32
	Edge       uint16 // index among the stage's outputs, or among Welcome.Inputs
	PeerEdge   uint16 // index as the peer knows it
	Peer       uint32
	PeerSource uint32 // the source as the peer knows it
}

func (m *Direct) fields(c *coder) {
	c.begin(KindDirect)
	c.u32("source", &m.Source)
	c.u16("edge", &m.Edge)
	c.u16("peer_edge", &m.PeerEdge)
	c.u32("peer", &m.Peer)
	c.u32("peer_source", &m.PeerSource)
}

// Streamed says that a stream of which a part went to a peer has ended, and how
// long it was. Source and Edge are the receiver's.
type Streamed struct {
	Source     uint32
	Edge       uint16
	Deliveries uint64 // of the whole stream; a bare end is none
	Bytes      uint64 // of the payloads that went to the peer
}

func (m *Streamed) fields(c *coder) {
	c.begin(KindStreamed)
	c.u32("source", &m.Source)
	c.u16("edge", &m.Edge)
	c.zeros(2)
	c.u64("deliveries", &m.Deliveries)
	c.u64("bytes", &m.Bytes)
}

// Lent says that the payload of a delivery is passed on by reference: when the
// client that says so is gone, others may read it still.
type Lent struct {
	Delivery uint32
}

func (m *Lent) fields(c *coder) {
	c.begin(KindLent)
	c.u32("delivery", &m.Delivery)
}

// Clear says that the client reads nothing any more that came from a peer,
// which is gone.
type Clear struct {
	Peer uint32
}

func (m *Clear) fields(c *coder) {
	c.begin(KindClear)
	c.u32("peer", &m.Peer)
}

// Cleared says that nobody reads anything any more that came from a peer, which
// is gone: what was lent to it, and passed on, is free.
type Cleared struct {
	Peer uint32
}

func (m *Cleared) fields(c *coder) {
	c.begin(KindCleared)
	c.u32("peer", &m.Peer)
}

// Report asks a client what it has under way that the host does not see.
type Report struct {
	Token uint32
}

func (m *Report) fields(c *coder) {
	c.begin(KindReport)
	c.u32("token", &m.Token)
}

// Reported answers Report, in one piece or more, with flag ReplyMore on all but
// the last.
type Reported struct {
	Token uint32
	Flags uint8
	Piece []byte // of JSON; aliases the packet
}

func (m *Reported) fields(c *coder) {
	c.begin(KindReported)
	c.u32("token", &m.Token)
	c.u8("flags", &m.Flags)
	c.bytes("piece", &m.Piece, MaxPiece)
}

// Lane brings one side's memory of the two lanes of a connection.
type Lane struct {
	Capacity uint32 // of the lane that this side sends in, in bytes
}

func (m *Lane) fields(c *coder) {
	c.begin(KindLane)
	c.u32("capacity", &m.Capacity)
}

// After begins a packet that comes after frames of the lane beside the socket. Alone in
// its packet it wakes the receiver.
type After struct {
	Frames uint64 // that its sender has sent before, since the connection began
}

func (m *After) fields(c *coder) {
	c.begin(KindAfter)
	c.u64("frames", &m.Frames)
}
