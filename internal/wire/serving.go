package wire

// Serve asks for the tasks of a stage.
//
//wire:message 10 to the host
type Serve struct {
	Token uint32
	Stage string
	Flags uint32 // 1: the stage emits nothing at the end of a task
}

// ServeEnds is the flag of a Serve whose stage emits nothing at the end of a task. A task ends
// with its last Finish, if that has FinishHandled. The client sends Ended unasked when all
// inputs of the task have come by Deliver, the last of each with FlagLast, and are finished.
const ServeEnds = 1

// State is the lifetime of a stage's state.
type State uint8

// The states.
const (
	StateRequest State = 0 // as long as the request
	StateNone    State = 1 // not from one delivery to the next
)

// String returns the state's name.
func (s State) String() string { return word([]string{"request", "none"}, s, "state") }

// Serving answers Serve.
//
//wire:message 11 to the client
type Serving struct {
	Token       uint32
	Stage       uint32 // the stage's number on this connection
	Replica     uint32
	MaxInflight uint32
	State       State // 0 of the request, 1 none
	Join        bool  // deliveries that belong together come together
	Batch       uint32
	Inputs      []Edge
	Outputs     []Edge
	Tensors     []Tensors // of the outputs, in their order
}

// Open announces a task: one request at one stage.
//
//wire:message 12 to the client
type Open struct {
	Task     uint32
	Stage    uint32
	Request  uint64
	Attempt  uint32
	TimeLeft int64 // see [deadlines](#deadlines)
	Trace    Trace
}

// The flags of a payload. The messages that have a flag stand behind it.
const (
	FlagLast   = 1 // the last of its stream
	FlagBare   = 2 // without a payload (Deliver)
	FlagInline = 4 // the payload is in the message (Deliver, Put)
	FlagMore   = 8 // more parts of a joined delivery follow (Deliver)
)

// Deliver brings one delivery to a stage, or one result to the client that submitted the request.
//
//wire:message 13 to the client or a peer
type Deliver struct {
	Source   uint32 // the task, or the request whose result this is
	Delivery uint32 // its number, for `finish`; never reused on this connection
	Edge     uint16 // index among the stage's inputs, or among `results`
	// 1 the last of its stream; 2 bare, without a payload (a host sends none: the end of a stream
	// without a payload is `end`); 4 inline; 8 more parts follow; 64 the host itself waits for the
	// results of the request, and may poll for them
	Flags uint8 `wire:"reserved=1"`
	// see [payloads](#payloads): 1 raw bytes, 2 msgpack, 3 tensor, 7 bundle, up to 255 the
	// serializers below package `codec`, from 256 on those of the bus
	Codec   uint32
	Attempt uint32 // 0 for the first; a repeat has the same seq and a higher attempt
	Seq     uint64 // position in the stream
	Dropped uint64 // deliveries of the stream that were dropped directly before this one
	Segment uint32 // where the payload lies, if it is not inline
	Offset  uint64 // in the segment
	Size    uint64 // of the payload, in bytes
	Key     string
	Attrs   map[string]string
	Payload []byte `wire:"inline"` // if it is inline; else empty
}

// The flags of Finish.
const (
	FinishKeep = 1 // the payload stays until Release
	// FinishUnread: the fetched payload was not read, and goes back under its key.
	FinishUnread = 2
	// FinishHandled: the handler of the delivery has returned; the client emits no more for it.
	FinishHandled = 4
)

// Finish ends the work on a delivery.
//
//wire:message 14 to the host or a peer
type Finish struct {
	Delivery uint32
	Flags    uint8  // 1: the payload stays until `release`; 2: unread, see [the exchange](#the-exchange); 4: the client emits no more for it
	Code     Code   // 0: success; else why the request has failed
	Text     string `wire:"text"`
}

// Release returns a payload that FinishKeep has kept.
//
//wire:message 15 to the host or a peer
type Release struct {
	Delivery uint32
}

// End says that all inputs of a task have ended and are finished.
//
//wire:message 16 to the client
type End struct {
	Task uint32
}

// Ended answers End: the task emits no more. Edge, Key and Seq say where it failed, if that is
// known.
//
//wire:message 17 to the host
type Ended struct {
	Task uint32
	Code Code   // 0: success; else why the request has failed
	Text string `wire:"text"`
	Edge string
	Key  string
	Seq  uint64
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

// Over says that a request has ended. Stage, Edge, Key and Seq say where, if that is known.
//
//wire:message 18 to the client
type Over struct {
	Source  uint32
	Outcome Outcome // 1 completed, 2 failed, 3 aborted, 4 past its deadline, 5 refused
	Stage   string
	Edge    string
	Key     string
	Seq     uint64
	Text    string `wire:"text"`
	Code    uint32 // why it was refused, else 0
}

// Leave says that the client wants no more tasks.
//
//wire:message 19 to the host; the client wants no more tasks of these stages
type Leave struct {
	Stages []uint32 // numbers that `serving` gave; none: all
}

// Drain says that the host is about to stop, or that another process replaces the client.
//
//wire:message 20 to the client; the host is about to stop, or another process replaces the client: it finishes its open tasks, and leaves
type Drain struct{}

// Scoreboard brings memory in which the client reports its running handlers, laid out as in
// package scoreboard.
//
//wire:message 21 to the host; one descriptor: a segment of 4,096 bytes
type Scoreboard struct{}

// Segment brings the descriptor of memory in which payloads lie.
//
//wire:message 24 to the client or a peer; one descriptor
type Segment struct {
	Segment uint32
	Bytes   uint64
}

// Forget says that no more deliveries name the segment.
//
//wire:message 25 both, and to a peer
type Forget struct {
	Segment uint32
}
