package wire

// Hello is a client's first message. The magic that it begins with is
// [Magic]; any other is an error.
type Hello struct {
	VersionMin uint16 // the oldest and
	VersionMax uint16 // the newest version that the client speaks
	PID        uint32 // the process, as the client sees itself
	Bus        string // the bus that it wants; empty: whichever this is
	Name       string // for people
}

func (m *Hello) fields(c *coder) {
	c.begin(KindHello)
	magic := Magic
	if c.u64("magic", &magic); magic != Magic {
		c.fail("magic", "%#016x, and a client says %#016x; this is no client of a bus", magic, Magic)
	}
	c.u16("version_min", &m.VersionMin)
	c.u16("version_max", &m.VersionMax)
	c.u32("pid", &m.PID)
	c.str("bus", &m.Bus, MaxName)
	c.str("name", &m.Name, MaxName)
}

// Welcome answers a Hello.
type Welcome struct {
	Version     uint16 // agreed on
	Node        uint32 // the client's number
	Epoch       uint64 // a new one for each start of a host
	InlineBytes uint32 // the largest payload that may travel in a message
	Bus         string
	Inputs      []Edge    // where the inputs of a submitted request go
	Results     []Edge    // where its results come from
	Tensors     []Tensors // of the inputs, in their order
}

func (m *Welcome) fields(c *coder) {
	c.begin(KindWelcome)
	c.u16("version", &m.Version)
	c.zeros(2)
	c.u32("node", &m.Node)
	c.u64("epoch", &m.Epoch)
	c.u32("inline_bytes", &m.InlineBytes)
	c.zeros(4)
	c.str("bus", &m.Bus, MaxName)
	c.edges("inputs", &m.Inputs)
	c.edges("results", &m.Results)
	c.tensors(&m.Tensors)
}

// Refuse is the last message of a host that does not want the client, or no
// longer.
type Refuse struct {
	Code Code
	Text string
}

func (m *Refuse) fields(c *coder) {
	c.begin(KindRefuse)
	c.code(&m.Code)
	c.text(&m.Text)
}

// Failed answers a question that has no other answer.
type Failed struct {
	Token uint32
	Code  Code
	Text  string
}

func (m *Failed) fields(c *coder) {
	c.begin(KindFailed)
	c.u32("token", &m.Token)
	c.code(&m.Code)
	c.text(&m.Text)
}

// Call asks the bus about itself.
type Call struct {
	Token     uint32
	Method    string
	Arguments []byte // JSON; aliases the packet
}

func (m *Call) fields(c *coder) {
	c.begin(KindCall)
	c.u32("token", &m.Token)
	c.str("method", &m.Method, MaxName)
	c.bytes("arguments", &m.Arguments, MaxPiece)
}

// ReplyMore is the flag of a Reply that is not the last of its answer.
const ReplyMore = 1

// Reply answers a Call, in one piece or more.
type Reply struct {
	Token uint32
	Flags uint8
	Piece []byte // of JSON; aliases the packet
}

func (m *Reply) fields(c *coder) {
	c.begin(KindReply)
	c.u32("token", &m.Token)
	c.u8("flags", &m.Flags)
	c.bytes("piece", &m.Piece, MaxPiece)
}

// Bye says that no more messages come.
type Bye struct{}

func (m *Bye) fields(c *coder) { c.begin(KindBye) }

// Policy says what an edge does when its window is full.
type Policy uint8

// The policies.
const (
	PolicyBlock      Policy = 0
	PolicyFail       Policy = 1
	PolicyDropOldest Policy = 2
)

// String returns the policy's name.
func (p Policy) String() string {
	return word([]string{"block", "fail", "drop oldest"}, p, "policy")
}

// Edge is an edge as a client sees it.
type Edge struct {
	Name        string // "from->to"
	Peer        string // the stage at the other end; empty: the caller
	Window      uint32 // deliveries; 0: no bound
	WindowBytes uint64 // 0: no bound
	Policy      Policy
}

// minEdge is the length of an edge without names.
const minEdge = 2 + 2 + 4 + 8 + 1

// edges is a list of them. A slice that is read into is used again.
func (c *coder) edges(field string, p *[]Edge) {
	n := c.count(field, len(*p), minEdge)
	if c.reading {
		*p = append((*p)[:0], make([]Edge, n)...)
	}
	for i := range *p {
		e := &(*p)[i]
		c.str(field, &e.Name, MaxName)
		c.str(field, &e.Peer, MaxName)
		c.u32(field, &e.Window)
		c.u64(field, &e.WindowBytes)
		c.enum(field, (*uint8)(&e.Policy), 0, uint8(PolicyDropOldest))
	}
}

// Tensors says how the tensors of an edge travel that lie in memory of a GPU.
type Tensors struct {
	Transport Transport
	MinBytes  uint64 // smaller ones, together in one payload, travel by TransportDefault
}

// Transport is one way for them to travel.
type Transport uint8

// The transports.
const (
	TransportDefault Transport = 0 // through host memory
	TransportIPC     Transport = 1 // the producer's own allocation
	TransportPool    Transport = 2 // through a pool of GPU memory
)

// String returns the transport's name.
func (t Transport) String() string {
	return word([]string{"default", "cuda_ipc", "cuda_ipc_pool"}, t, "transport")
}

// minTensors is the size of one.
const minTensors = 9

// tensors is a list of them. A slice that is read into is used again.
func (c *coder) tensors(p *[]Tensors) {
	n := c.count("tensors", len(*p), minTensors)
	if c.reading {
		*p = append((*p)[:0], make([]Tensors, n)...)
	}
	for i := range *p {
		c.enum("tensors", (*uint8)(&(*p)[i].Transport), 0, uint8(TransportPool))
		c.u64("tensors", &(*p)[i].MinBytes)
	}
}

// Trace is the W3C trace context of a request; zero when it is not traced.
type Trace struct {
	TraceID [16]byte
	SpanID  [8]byte
	Flags   uint8
	State   string
}

func (c *coder) trace(field string, p *Trace) {
	c.fixed(field, p.TraceID[:])
	c.fixed(field, p.SpanID[:])
	c.u8(field, &p.Flags)
	c.str(field, &p.State, MaxTraceState)
}
