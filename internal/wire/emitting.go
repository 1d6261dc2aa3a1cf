package wire

// Emit emits a payload that travels in the message.
type Emit struct {
	Token    uint32
	Source   uint32 // the task or the submitted request
	Delivery uint32 // the one whose handling emits; 0: none
	Edge     uint16 // index, or AllEdges
	Flags    uint8  // FlagLast
	Codec    uint32
	Key      string
	Attrs    map[string]string
	Payload  []byte // aliases the packet
}

func (m *Emit) fields(c *coder) {
	c.begin(KindEmit)
	c.u32("token", &m.Token)
	c.u32("source", &m.Source)
	c.u32("delivery", &m.Delivery)
	c.u16("edge", &m.Edge)
	c.u8("flags", &m.Flags)
	c.zeros(1)
	c.u32("codec", &m.Codec)
	c.str("key", &m.Key, MaxName)
	c.attrs(&m.Attrs)
	c.bytes("payload", &m.Payload, MaxInline)
}

// Emitted answers Emit: the payload has its place in the windows.
type Emitted struct {
	Token uint32
}

func (m *Emitted) fields(c *coder) {
	c.begin(KindEmitted)
	c.u32("token", &m.Token)
}

// Arena asks for memory to emit from.
type Arena struct {
	Token uint32
	Bytes uint64 // 0: as much as the stages' windows need
}

func (m *Arena) fields(c *coder) {
	c.begin(KindArena)
	c.u32("token", &m.Token)
	c.u64("bytes", &m.Bytes)
}

// ArenaAt answers Arena, and brings the descriptor.
type ArenaAt struct {
	Token   uint32
	Segment uint32
	Bytes   uint64
}

func (m *ArenaAt) fields(c *coder) {
	c.begin(KindArenaAt)
	c.u32("token", &m.Token)
	c.u32("segment", &m.Segment)
	c.u64("bytes", &m.Bytes)
}

// Sealed says that nobody but the client can write to the segment any more.
type Sealed struct {
	Segment uint32
}

func (m *Sealed) fields(c *coder) {
	c.begin(KindSealed)
	c.u32("segment", &m.Segment)
}

// Reserve asks for credit on the edges and for room in the arena.
type Reserve struct {
	Token    uint32
	Source   uint32
	Delivery uint32
	Edge     uint16
	Codec    uint32
	Size     uint64 // bytes
}

func (m *Reserve) fields(c *coder) {
	c.begin(KindReserve)
	c.u32("token", &m.Token)
	c.u32("source", &m.Source)
	c.u32("delivery", &m.Delivery)
	c.u16("edge", &m.Edge)
	c.zeros(2)
	c.u32("codec", &m.Codec)
	c.u64("size", &m.Size)
}

// Grant answers Reserve. It brings a descriptor when the segment is new.
type Grant struct {
	Token   uint32
	Grant   uint32 // its number, for Send and Abort
	Segment uint32
	Offset  uint64
	Size    uint64
}

func (m *Grant) fields(c *coder) {
	c.begin(KindGrant)
	c.u32("token", &m.Token)
	c.u32("grant", &m.Grant)
	c.u32("segment", &m.Segment)
	c.u64("offset", &m.Offset)
	c.u64("size", &m.Size)
}

// Send emits what the client has written into the room of a grant.
type Send struct {
	Grant uint32
	Size  uint64 // bytes that were used
	Flags uint8  // FlagLast
	Key   string
	Attrs map[string]string
}

func (m *Send) fields(c *coder) {
	c.begin(KindSend)
	c.u32("grant", &m.Grant)
	c.u64("size", &m.Size)
	c.u8("flags", &m.Flags)
	c.str("key", &m.Key, MaxName)
	c.attrs(&m.Attrs)
}

// Abort gives a grant back unused.
type Abort struct {
	Grant uint32
}

func (m *Abort) fields(c *coder) {
	c.begin(KindAbort)
	c.u32("grant", &m.Grant)
}

// Offer brings the descriptor of a segment of the client's, to be read.
type Offer struct {
	Segment uint32
	Bytes   uint64
}

func (m *Offer) fields(c *coder) {
	c.begin(KindOffer)
	c.u32("segment", &m.Segment)
	c.u64("bytes", &m.Bytes)
}

// Put emits a payload that lies in a segment that was offered, or in the
// message.
type Put struct {
	Put      uint32 // its number, for Returned
	Source   uint32
	Delivery uint32
	Edge     uint16
	Flags    uint8 // FlagLast, FlagInline
	Codec    uint32
	Attempt  uint32
	Segment  uint32
	Offset   uint64
	Size     uint64 // of the payload, in bytes
	Key      string
	Attrs    map[string]string
	Payload  []byte // with FlagInline; aliases the packet
}

func (m *Put) fields(c *coder) {
	c.begin(KindPut)
	c.u32("put", &m.Put)
	c.u32("source", &m.Source)
	c.u32("delivery", &m.Delivery)
	c.u16("edge", &m.Edge)
	c.u8("flags", &m.Flags)
	c.zeros(1)
	c.u32("codec", &m.Codec)
	c.u32("attempt", &m.Attempt)
	c.u32("segment", &m.Segment)
	c.u64("offset", &m.Offset)
	c.u64("size", &m.Size)
	c.str("key", &m.Key, MaxName)
	c.attrs(&m.Attrs)
	c.bytes("payload", &m.Payload, MaxInline)
	c.inline(m.Flags, m.Size, m.Payload)
}

// Returned says that all consumers are done with some puts.
type Returned struct {
	Puts []uint32 // at most MaxReturned
}

func (m *Returned) fields(c *coder) {
	c.begin(KindReturned)
	c.numbers("puts", &m.Puts)
}

// SpentBytes is the flag of a Spent that gives the bytes back too.
const SpentBytes = 1

// Spent gives the place of a put in the windows back, while its payload is
// still needed: Returned comes later.
type Spent struct {
	Put   uint32
	Flags uint8 // SpentBytes
}

func (m *Spent) fields(c *coder) {
	c.begin(KindSpent)
	c.u32("put", &m.Put)
	c.u8("flags", &m.Flags)
}
