package wire

// Hello is a client's first message. The magic that it begins with is
// [Magic]; any other is an error.
//
//wire:message 1 to the host
type Hello struct {
	VersionMin uint16 `wire:"magic"` // the oldest version that the client speaks
	VersionMax uint16 // the newest version that the client speaks
	PID        uint32 // the process, as the client sees itself
	Bus        string // the bus that the client wants; empty: any
	Name       string // for people
}

// Welcome answers a Hello.
//
//wire:message 2 to the client
type Welcome struct {
	Version     uint16 // of this connection
	Segments    uint16 // number that the client may have offered at a time; 0: the host does not say
	Node        uint32 // the client's number
	Epoch       uint64 // a new number for each start of a host
	InlineBytes uint32 // the largest payload that may travel in a message
	LargestMib  uint32 // the largest payload at all, in MiB, rounded down; 0: the host does not say
	Bus         string
	Inputs      []Edge    // where the inputs of a submitted request go
	Results     []Edge    // where its results come from
	Tensors     []Tensors // of the inputs, in their order
}

// Refuse is the last message of a host that refuses a client, or ends its session.
//
//wire:message 3 to the client; the host closes after it
type Refuse struct {
	Code Code
	Text string `wire:"text"`
}

// Failed answers a question that the host cannot answer otherwise.
//
//wire:message 4 to the client
type Failed struct {
	Token uint32
	Code  Code
	Text  string `wire:"text"`
}

// Call asks the bus about itself.
//
//wire:message 56 to the host
type Call struct {
	Token     uint32
	Method    string
	Arguments []byte `wire:"most=MaxPiece"` // JSON
}

// ReplyMore is the flag of a Reply that is not the last of its answer.
const ReplyMore = 1

// Reply answers a Call, in one piece or more.
//
//wire:message 57 to the client
type Reply struct {
	Token uint32
	Flags uint8  // 1: more pieces follow
	Piece []byte `wire:"most=MaxPiece"` // of JSON
}

// Bye says that no more messages come.
//
//wire:message 60 both
type Bye struct{}

// Policy is the behaviour of an edge whose window is full.
type Policy uint8

// The policies.
const (
	PolicyBlock      Policy = 0
	PolicyFail       Policy = 1
	PolicyDropOldest Policy = 2
)

var policyWords = [...]string{PolicyBlock: "block", PolicyFail: "fail", PolicyDropOldest: "drop-oldest"}

// String returns the policy's word, which pipeline files use.
func (p Policy) String() string { return word(policyWords[:], p, "policy") }

// Valid reports whether there is such a policy.
func (p Policy) Valid() bool { return int(p) < len(policyWords) }

// Edge is an edge as a client sees it.
//
//wire:part
type Edge struct {
	Name        string // `from->to`
	Peer        string // the stage at the other end; empty: the caller
	Window      uint32 // deliveries; 0: no bound
	WindowBytes uint64 // 0: no bound
	Policy      Policy // 0 block, 1 fail, 2 drop-oldest
}

// Tensors says how an edge carries tensors in GPU memory.
//
//wire:part
type Tensors struct {
	Transport Transport // 0 default, 1 cuda_ipc, 2 cuda_ipc_pool
	MinBytes  uint64    // if all tensors of a payload together are smaller, they travel by 0
}

// Transport is a way for tensors to travel.
type Transport uint8

// The transports.
const (
	TransportDefault Transport = 0 // through host memory
	TransportIPC     Transport = 1 // the producer's own allocation
	TransportPool    Transport = 2 // through a pool of GPU memory
)

var transportWords = [...]string{TransportDefault: "default", TransportIPC: "cuda_ipc", TransportPool: "cuda_ipc_pool"}

// String returns the transport's word, which pipeline files use.
func (t Transport) String() string { return word(transportWords[:], t, "transport") }

// Valid reports whether there is such a transport.
func (t Transport) Valid() bool { return int(t) < len(transportWords) }

// Trace is the W3C trace context of a request; zero when it is not traced.
//
//wire:part
type Trace struct {
	TraceID [16]byte
	SpanID  [8]byte
	Flags   uint8
	State   string `wire:"most=MaxTraceState"`
}
