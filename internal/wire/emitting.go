package wire

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
