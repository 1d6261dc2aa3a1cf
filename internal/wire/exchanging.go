package wire

// Place puts a payload under a key of an edge. It lies in a segment that was
// offered, in the room of a grant, or in the message.
type Place struct {
	Token   uint32
	Owner   uint32 // which of the client's: Cleanup names it
	Put     uint32 // of a payload in a segment that was offered: its number, for Returned
	Flags   uint8  // FlagInline, FlagOwn
	Segment uint32
	Offset  uint64
	Size    uint64 // of the payload, in bytes
	From    string // the edge
	To      string
	Key     string
	Payload []byte // with FlagInline; aliases the packet
}

func (m *Place) fields(c *coder) {
	c.begin(KindPlace)
	c.u32("token", &m.Token)
	c.u32("owner", &m.Owner)
	c.zeros(4)
	c.u32("put", &m.Put)
	c.u8("flags", &m.Flags)
	c.zeros(3)
	c.u32("segment", &m.Segment)
	c.u64("offset", &m.Offset)
	c.u64("size", &m.Size)
	c.place(&m.From, &m.To, &m.Key)
	c.bytes("payload", &m.Payload, MaxInline)
	c.inline(m.Flags, m.Size, m.Payload)
}

// place is a key of an edge.
func (c *coder) place(from, to, key *string) {
	c.str("from", from, MaxName)
	c.str("to", to, MaxName)
	c.str("key", key, MaxName)
}

// Placed answers Place: whoever asks for the key finds the payload.
type Placed struct {
	Token uint32
	Entry uint64 // the payload's number, which is never another's
}

func (m *Placed) fields(c *coder) {
	c.begin(KindPlaced)
	c.u32("token", &m.Token)
	c.zeros(4)
	c.u64("entry", &m.Entry)
}

// Flags of a Fetch.
const (
	FetchWait = 1 // until something is placed
)

// Fetch asks for what lies under a key of an edge.
type Fetch struct {
	Token uint32
	Flags uint8  // FetchWait
	Entry uint64 // the number of the payload that is meant; 0: any
	From  string
	To    string
	Key   string
}

func (m *Fetch) fields(c *coder) {
	c.begin(KindFetch)
	c.u32("token", &m.Token)
	c.u8("flags", &m.Flags)
	c.zeros(3)
	c.u64("entry", &m.Entry)
	c.place(&m.From, &m.To, &m.Key)
}

// Fetched answers Fetch: the payload is the client's, until Finish.
type Fetched struct {
	Token    uint32
	Delivery uint32 // its number, for Finish
	Flags    uint8  // FlagInline
	Segment  uint32 // where the payload lies, if it is not inline
	Offset   uint64
	Size     uint64 // of the payload, in bytes
	Payload  []byte // with FlagInline; aliases the packet
}

func (m *Fetched) fields(c *coder) {
	c.begin(KindFetched)
	c.u32("token", &m.Token)
	c.u32("delivery", &m.Delivery)
	c.u8("flags", &m.Flags)
	c.zeros(3)
	c.u32("segment", &m.Segment)
	c.u64("offset", &m.Offset)
	c.u64("size", &m.Size)
	c.bytes("payload", &m.Payload, MaxInline)
	c.inline(m.Flags, m.Size, m.Payload)
}

// Cancel has a question answered that waits: a Fetch, or a Submit.
type Cancel struct {
	Token uint32
}

func (m *Cancel) fields(c *coder) {
	c.begin(KindCancel)
	c.u32("token", &m.Token)
}

// Cleanup takes back what an owner has placed and nobody has fetched: under a
// key, and under all keys of a request, or everything.
type Cleanup struct {
	Token uint32
	Owner uint32
	Key   string // or a request; empty: everything
}

func (m *Cleanup) fields(c *coder) {
	c.begin(KindCleanup)
	c.u32("token", &m.Token)
	c.u32("owner", &m.Owner)
	c.str("key", &m.Key, MaxName)
}

// Cleaned answers Cleanup.
type Cleaned struct {
	Token uint32
	Count uint32 // of the payloads that were taken back
}

func (m *Cleaned) fields(c *coder) {
	c.begin(KindCleaned)
	c.u32("token", &m.Token)
	c.u32("count", &m.Count)
}
