package wire

// Shelf gives the host a shelf of the client's: values of the segment lie on it, which
// the client has offered.
type Shelf struct {
	Token   uint32
	Segment uint32
}

func (m *Shelf) fields(c *coder) {
	c.begin(KindShelf)
	c.u32("token", &m.Token)
	c.u32("segment", &m.Segment)
}

// Shelved answers Shelf.
type Shelved struct {
	Token uint32
	First uint64 // the first of the shelf's numbers
}

func (m *Shelved) fields(c *coder) {
	c.begin(KindShelved)
	c.u32("token", &m.Token)
	c.zeros(4)
	c.u64("first", &m.First)
}

// ShelfAt tells a client of somebody else's shelf, by an open file description that is for
// this client alone.
type ShelfAt struct {
	Segment uint32 // that the values lie in, which the client has been told of
	First   uint64 // the first of the shelf's numbers
}

func (m *ShelfAt) fields(c *coder) {
	c.begin(KindShelfAt)
	c.u32("segment", &m.Segment)
	c.zeros(4)
	c.u64("first", &m.First)
}

// Shelve is Place of what lies on the client's shelf. It has no answer.
type Shelve struct {
	Entry  uint64 // its number there
	At     int64  // when it was put, by the machine's monotonic clock, in nanoseconds
	Owner  uint32
	Put    uint32 // the payload's number, for Returned
	Offset uint64 // in the shelf's segment
	Size   uint64 // of the payload, in bytes
	From   string // the edge
	To     string
	Key    string
}

func (m *Shelve) fields(c *coder) {
	c.begin(KindShelve)
	c.u64("entry", &m.Entry)
	c.i64("at", &m.At)
	c.u32("owner", &m.Owner)
	c.u32("put", &m.Put)
	c.u64("offset", &m.Offset)
	c.u64("size", &m.Size)
	c.place(&m.From, &m.To, &m.Key)
}

// Flags of a Taken.
const (
	TakenOver = 1 // the client has taken the values, and needs them no more
	TakenAll  = 2 // it takes nothing more from the shelves, whose first numbers the entries are
)

// Taken says that the client has taken values from shelves.
type Taken struct {
	Flags   uint8    // one of TakenOver, TakenAll
	Entries []uint64 // at most MaxTaken
}

func (m *Taken) fields(c *coder) {
	c.begin(KindTaken)
	c.u8("flags", &m.Flags)
	c.zeros(3)
	c.entries("entries", &m.Entries)
}
