package wire

// Publish puts a descriptor under a name, where all who are attached find it.
type Publish struct {
	Token  uint32
	Number uint32
	Pool   [16]byte // with the number: the name
	Size   uint64   // of what is behind the descriptor, in bytes: for who finds it
}

func (m *Publish) fields(c *coder) {
	c.begin(KindPublish)
	c.u32("token", &m.Token)
	c.name(&m.Number, &m.Pool)
	c.u64("size", &m.Size)
}

// name is the name of a descriptor.
func (c *coder) name(number *uint32, pool *[16]byte) {
	c.u32("number", number)
	c.fixed("pool", pool[:])
}

// Published answers Publish.
type Published struct {
	Token uint32
}

func (m *Published) fields(c *coder) {
	c.begin(KindPublished)
	c.u32("token", &m.Token)
}

// Withdraw takes back what the client has published under a name.
type Withdraw struct {
	Number uint32
	Pool   [16]byte
}

func (m *Withdraw) fields(c *coder) {
	c.begin(KindWithdraw)
	c.name(&m.Number, &m.Pool)
}

// Find asks for the descriptor under a name.
type Find struct {
	Token  uint32
	Number uint32
	Pool   [16]byte
}

func (m *Find) fields(c *coder) {
	c.begin(KindFind)
	c.u32("token", &m.Token)
	c.name(&m.Number, &m.Pool)
}

// Found answers Find. Its descriptors are a duplicate of what was published, and
// the pidfd of the process that did.
type Found struct {
	Token uint32
	Owner uint32 // who published it: the same number for the same process
	PID   uint32
	Size  uint64 // as published
}

func (m *Found) fields(c *coder) {
	c.begin(KindFound)
	c.u32("token", &m.Token)
	c.u32("owner", &m.Owner)
	c.u32("pid", &m.PID)
	c.zeros(4)
	c.u64("size", &m.Size)
}
