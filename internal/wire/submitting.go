package wire

// Flags of Submit.
const (
	// SubmitTry has the request refused with CodeOverloaded rather than wait for a place.
	SubmitTry = 1
	// SubmitTell has the host say with Submitted that the request has begun.
	SubmitTell = 2
)

// OwnSource is the bit that the numbers have which clients choose for their requests.
const OwnSource = 1 << 31

// Submit opens a request.
type Submit struct {
	Deadline int64 // Unix nanoseconds; 0: none
	Flags    uint8
	Trace    Trace
	// Source names the request on this connection: the client chooses it. It has the bit
	// OwnSource, and is higher than all before it. The host refuses the request with Over.
	Source uint32
}

func (m *Submit) fields(c *coder) {
	c.begin(KindSubmit)
	c.i64("deadline", &m.Deadline)
	c.u8("flags", &m.Flags)
	c.trace("trace", &m.Trace)
	c.u32("source", &m.Source)
}

// Submitted says that a request has begun whose Submit has SubmitTell.
type Submitted struct {
	Source  uint32
	Request uint64 // names it on the bus
}

func (m *Submitted) fields(c *coder) {
	c.begin(KindSubmitted)
	c.u32("source", &m.Source)
	c.u64("request", &m.Request)
}

// CloseSend ends the inputs of a request.
type CloseSend struct {
	Source uint32
}

func (m *CloseSend) fields(c *coder) {
	c.begin(KindCloseSend)
	c.u32("source", &m.Source)
}

// AbortRequest ends a request.
type AbortRequest struct {
	Source uint32
	Text   string
}

func (m *AbortRequest) fields(c *coder) {
	c.begin(KindAbortRequest)
	c.u32("source", &m.Source)
	c.text(&m.Text)
}

// Close says that no more results of a request are wanted.
type Close struct {
	Source uint32
}

func (m *Close) fields(c *coder) {
	c.begin(KindClose)
	c.u32("source", &m.Source)
}
