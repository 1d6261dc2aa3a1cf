package wire

// Serve asks for the tasks of a stage.
type Serve struct {
	Token uint32
	Stage string
	Flags uint32 // ServeEnds
}

// ServeEnds is the flag of a Serve whose stage does nothing at the end of a task. The
// client says unasked that a task has ended when all of its inputs have come by Deliver, the
// last of each with FlagLast, and are finished.
const ServeEnds = 1

func (m *Serve) fields(c *coder) {
	c.begin(KindServe)
	c.u32("token", &m.Token)
	c.str("stage", &m.Stage, MaxName)
	c.u32("flags", &m.Flags)
}

// State says how long a stage keeps what it knows.
type State uint8

// The states.
const (
	StateRequest State = 0 // as long as the request
	StateNone    State = 1 // not from one delivery to the next
)

// String returns the state's name.
func (s State) String() string { return word([]string{"request", "none"}, s, "state") }

// Serving answers Serve.
type Serving struct {
	Token       uint32
	Stage       uint32 // the stage's number on this connection
	Replica     uint32
	MaxInflight uint32
	State       State
	Join        bool // deliveries that belong together come together
	Batch       uint32
	Inputs      []Edge
	Outputs     []Edge
	Tensors     []Tensors // of the outputs, in their order
}

func (m *Serving) fields(c *coder) {
	c.begin(KindServing)
	c.u32("token", &m.Token)
	c.u32("stage", &m.Stage)
	c.u32("replica", &m.Replica)
	c.u32("max_inflight", &m.MaxInflight)
	c.enum("state", (*uint8)(&m.State), 0, uint8(StateNone))
	c.bool("join", &m.Join)
	c.u32("batch", &m.Batch)
	c.edges("inputs", &m.Inputs)
	c.edges("outputs", &m.Outputs)
	c.tensors(&m.Tensors)
}

// Open announces a task: one request at one stage.
type Open struct {
	Task     uint32
	Stage    uint32
	Request  uint64
	Attempt  uint32
	Deadline int64 // Unix nanoseconds; 0: none
	Trace    Trace
}

func (m *Open) fields(c *coder) {
	c.begin(KindOpen)
	c.u32("task", &m.Task)
	c.u32("stage", &m.Stage)
	c.u64("request", &m.Request)
	c.u32("attempt", &m.Attempt)
	c.i64("deadline", &m.Deadline)
	c.trace("trace", &m.Trace)
}

// The flags of a payload: of Deliver and Put, as far as each has
// them.
const (
	FlagLast   = 1 // the last of its stream
	FlagBare   = 2 // without a payload (Deliver)
	FlagInline = 4 // the payload is in the message (Deliver, Put)
	FlagMore   = 8 // more parts of a joined delivery follow (Deliver)
)

// Deliver brings one delivery to a stage, or one result to whoever submitted
// the request.
type Deliver struct {
	Source   uint32 // the task, or the request whose result this is
	Delivery uint32 // its number, for Finish
	Edge     uint16 // index among the stage's inputs, or among Welcome.Results
	Flags    uint8  // FlagLast, FlagBare, FlagInline, FlagMore, FlagAwaited
	Codec    uint32
	Attempt  uint32
	Seq      uint64 // position in the stream
	Dropped  uint64 // deliveries that were dropped directly before this one
	Segment  uint32 // where the payload lies, if it is not inline
	Offset   uint64
	Size     uint64 // of the payload, in bytes
	Key      string
	Attrs    map[string]string
	Payload  []byte // with FlagInline; aliases the packet
}

func (m *Deliver) fields(c *coder) {
	c.begin(KindDeliver)
	c.u32("source", &m.Source)
	c.u32("delivery", &m.Delivery)
	c.u16("edge", &m.Edge)
	c.u8("flags", &m.Flags)
	c.zeros(1)
	c.u32("codec", &m.Codec)
	c.u32("attempt", &m.Attempt)
	c.u64("seq", &m.Seq)
	c.u64("dropped", &m.Dropped)
	c.u32("segment", &m.Segment)
	c.u64("offset", &m.Offset)
	c.u64("size", &m.Size)
	c.str("key", &m.Key, MaxName)
	c.attrs(&m.Attrs)
	c.bytes("payload", &m.Payload, MaxInline)
	c.inline(m.Flags, m.Size, m.Payload)
}

// inline checks that the payload in a message is what the other fields say.
func (c *coder) inline(flags uint8, size uint64, payload []byte) {
	switch {
	case c.err != nil:
	case flags&FlagInline == 0 && len(payload) > 0:
		c.fail("payload", "%d bytes, without the flag that says so", len(payload))
	case flags&FlagInline != 0 && size != uint64(len(payload)):
		c.fail("payload", "%d bytes, and the size says %d", len(payload), size)
	}
}

// The flags of Finish.
const (
	FinishKeep = 1 // the payload stays until Release
	// FinishUnread: what was fetched has not been looked at, and goes back under
	// its key.
	FinishUnread = 2
)

// Finish ends the work on a delivery.
type Finish struct {
	Delivery uint32
	Flags    uint8
	Code     Code // OK, or why the request has failed
	Text     string
}

func (m *Finish) fields(c *coder) {
	c.begin(KindFinish)
	c.u32("delivery", &m.Delivery)
	c.u8("flags", &m.Flags)
	c.code(&m.Code)
	c.text(&m.Text)
}

// Release gives a payload back that FinishKeep has kept.
type Release struct {
	Delivery uint32
}

func (m *Release) fields(c *coder) {
	c.begin(KindRelease)
	c.u32("delivery", &m.Delivery)
}

// End says that all inputs of a task have ended and are finished.
type End struct {
	Task uint32
}

func (m *End) fields(c *coder) {
	c.begin(KindEnd)
	c.u32("task", &m.Task)
}

// Ended answers End: the task has emitted all it will. Edge, Key and Seq say
// where it failed, as far as that is known.
type Ended struct {
	Task uint32
	Code Code // OK, or why the request has failed
	Text string
	Edge string
	Key  string
	Seq  uint64
}

func (m *Ended) fields(c *coder) {
	c.begin(KindEnded)
	c.u32("task", &m.Task)
	c.code(&m.Code)
	c.text(&m.Text)
	c.str("edge", &m.Edge, MaxName)
	c.str("key", &m.Key, MaxName)
	c.u64("seq", &m.Seq)
}

// Outcome says how a request has ended.
type Outcome uint8

// The outcomes.
const (
	OutcomeCompleted Outcome = 1
	OutcomeFailed    Outcome = 2
	OutcomeAborted   Outcome = 3
	OutcomeDeadline  Outcome = 4
	OutcomeRefused   Outcome = 5 // it did not begin
)

// String returns the outcome's word.
func (o Outcome) String() string {
	words := []string{
		OutcomeCompleted: "completed",
		OutcomeFailed:    "failed",
		OutcomeAborted:   "aborted",
		OutcomeDeadline:  "past its deadline",
		OutcomeRefused:   "refused",
	}
	return word(words, o, "outcome")
}

// Over says that a request has ended. Stage, Edge, Key and Seq say where, as
// far as that is known.
type Over struct {
	Source  uint32
	Outcome Outcome
	Stage   string
	Edge    string
	Key     string
	Seq     uint64
	Text    string
	Code    uint32 // a Code, why it was refused
}

func (m *Over) fields(c *coder) {
	c.begin(KindOver)
	c.u32("source", &m.Source)
	c.enum("outcome", (*uint8)(&m.Outcome), uint8(OutcomeCompleted), uint8(OutcomeRefused))
	c.str("stage", &m.Stage, MaxName)
	c.str("edge", &m.Edge, MaxName)
	c.str("key", &m.Key, MaxName)
	c.u64("seq", &m.Seq)
	c.text(&m.Text)
	c.u32("code", &m.Code)
}

// Leave says that the client wants no more tasks.
type Leave struct {
	Stages []uint32 // of these, as Serving has them; none: of any
}

func (m *Leave) fields(c *coder) {
	c.begin(KindLeave)
	c.numbers("stages", &m.Stages)
}

// Drain says that the host is going to stop.
type Drain struct{}

func (m *Drain) fields(c *coder) { c.begin(KindDrain) }

// Segment brings the descriptor of memory in which payloads lie.
type Segment struct {
	Segment uint32
	Bytes   uint64
}

func (m *Segment) fields(c *coder) {
	c.begin(KindSegment)
	c.u32("segment", &m.Segment)
	c.u64("bytes", &m.Bytes)
}

// Forget says that no more deliveries will name the segment.
type Forget struct {
	Segment uint32
}

func (m *Forget) fields(c *coder) {
	c.begin(KindForget)
	c.u32("segment", &m.Segment)
}
