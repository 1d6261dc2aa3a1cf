package config

import (
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
)

// Unbounded is the window size of an edge that is bounded by bytes alone.
const Unbounded = -1

// State is what a stage keeps between messages.
type State string

// The states of a stage.
const (
	StateNone    State = "none"    // nothing: any replica takes any message
	StateRequest State = "request" // per request: one replica sees all of a request
)

// Restart says when the process of a stage is started again.
type Restart string

// The restart policies.
const (
	RestartAlways    Restart = "always"
	RestartOnFailure Restart = "on-failure"
	RestartNever     Restart = "never"
)

// Routing says which process of a stage gets a message.
type Routing string

// The routings.
const (
	RoutingSticky     Routing = "sticky"      // a request stays with one process
	RoutingLeastQueue Routing = "least-queue" // the process with the least work
	RoutingRoundRobin Routing = "round-robin" // one after the other
)

// TensorTransport says how tensors travel that lie in memory of a GPU.
type TensorTransport string

// The transports of tensors; without one an edge has TensorsDefault.
const (
	TensorsDefault TensorTransport = "default"       // copied through host memory
	TensorsIPC     TensorTransport = "cuda_ipc"      // the sender's own allocations
	TensorsPool    TensorTransport = "cuda_ipc_pool" // copied into a pool of GPU memory
)

// Policy says what a sender does when the window of an edge is full.
type Policy string

// The policies of an edge.
const (
	PolicyBlock      Policy = "block"       // wait: nothing is lost
	PolicyFail       Policy = "fail"        // fail the emission
	PolicyDropOldest Policy = "drop-oldest" // lose the oldest message that has not left the sender
)

// Serializer is how payloads are encoded.
type Serializer string

// The serializers.
const (
	SerializerMsgpack Serializer = "msgpack"
	SerializerRaw     Serializer = "raw"
	// SerializerOmni is the format of vLLM-Omni's connectors, for edges whose other
	// end is one of its processes.
	SerializerOmni Serializer = "omni"
)

// Memory is where the ring lives.
type Memory string

// The memories.
const (
	MemoryShared Memory = "shared" // mapped by all processes of the pipeline
	MemoryHeap   Memory = "heap"   // this process only
)

// A Pipeline is a checked and resolved file.
type Pipeline struct {
	// File is the name the file was read under.
	File string `json:"file"`
	// Name is omnibus.name, else the file's pipeline key, else the base name
	// of the file. It consists of letters, digits, '.', '_' and '-'.
	Name string `json:"name"`
	// Stages are in topological order; stages that could stand either way
	// keep the order of the file.
	Stages []Stage `json:"stages"`
	// Edges are ordered by sender, then receiver, in the order of Stages.
	Edges []Edge `json:"edges"`
	// CallerEdges are those between the caller and stages that the file lists, to give them
	// settings; the caller is the end without a name. There are others without being listed.
	CallerEdges []Edge `json:"caller_edges,omitempty"`
	// Connectors are the definitions that have a name, whether used or not.
	Connectors map[string]Connector `json:"connectors,omitempty"`
	Bus        Bus                  `json:"bus"`
	// Settings are the top-level keys that this package does not read.
	Settings Settings `json:"settings,omitempty"`
	Notes    []Note   `json:"notes,omitempty"`
}

// Bus holds the settings of the bus as a whole. Zero: the bus chooses.
type Bus struct {
	RingBytes    int64         `json:"ring_bytes,omitempty"`
	LargeBytes   int64         `json:"large_bytes,omitempty"` // payloads larger than their edge's byte window, together
	Slots        int           `json:"slots,omitempty"`
	MaxRequests  int           `json:"max_requests,omitempty"`
	InlineBytes  int64         `json:"inline_bytes,omitempty"` // payloads up to this size travel in the message
	Serializer   Serializer    `json:"serializer,omitempty"`
	StallTimeout time.Duration `json:"stall_timeout_ns,omitempty"`
	// ExchangeTTL is how long a value stays in the exchange if no process gets it.
	ExchangeTTL time.Duration `json:"exchange_ttl_ns,omitempty"`
	Memory      Memory        `json:"memory,omitempty"`

	// What follows is for the host of a bus whose stages are processes.

	// Socket is the path of the host's socket; relative to the file's folder.
	Socket string `json:"socket,omitempty"`
	// AllowUIDs are the users that may attach besides the host's own.
	AllowUIDs []uint32 `json:"allow_uids,omitempty"`
	// HTTP is where the host serves metrics and health: the path of a socket
	// (with a slash; relative to the file's folder), or host:port of a loopback
	// address.
	HTTP string `json:"http,omitempty"`
	// Wait is how the processes wait for each other.
	Wait bus.Wait `json:"wait,omitempty"`
	// Main is the command line of a process that uses the bus: it is started
	// when the stages are ready, and the host ends when it does.
	Main []string `json:"main,omitempty"`
	// Grace is how long open requests may take when the host drains.
	Grace time.Duration `json:"grace_ns,omitempty"`
}

// A Stage is one step of the pipeline. Zero values: the bus chooses, except
// where a field says otherwise.
type Stage struct {
	// ID is the stage_id as text: 0 and "0" are the same stage.
	ID string `json:"id"`
	// Handler is the registered handler, by default the ID.
	Handler  string `json:"handler"`
	Replicas int    `json:"replicas,omitempty"`
	// MaxInflight bounds the requests that the stage works on at a time:
	// omnibus.max_inflight, else the stage's runtime.max_inflight, else its
	// own max_inflight, else the smallest max_inflight of the edges that lead
	// to it, else runtime.defaults.max_inflight.
	MaxInflight int   `json:"max_inflight,omitempty"`
	State       State `json:"state,omitempty"`
	Attempts    int   `json:"attempts,omitempty"`
	Replay      bool  `json:"replay,omitempty"`
	// Join makes the stage wait for one input from each of its edges. It has
	// at least two.
	Join  bool  `json:"join,omitempty"`
	Batch Batch `json:"batch,omitzero"`

	// Exec is the command line of the stage's processes, of which there are
	// Replicas; without it and Attach the stage runs in the process of the bus.
	// See Pipeline.Path for what paths in it, and Cwd, are relative to.
	Exec []string          `json:"exec,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
	// Attach expects a process that the host does not start.
	Attach  bool    `json:"attach,omitempty"`
	Routing Routing `json:"routing,omitempty"`
	// Restart says when a process is started again, MaxRestarts how often
	// within a minute.
	Restart     Restart `json:"restart,omitempty"`
	MaxRestarts int     `json:"max_restarts,omitempty"`
	// Grace is what a process has between SIGTERM and SIGKILL, StartTimeout
	// what it has to serve its stage.
	Grace        time.Duration `json:"grace_ns,omitempty"`
	StartTimeout time.Duration `json:"start_timeout_ns,omitempty"`
	// HandleTimeout is how long the stage's function may take for one message, FirstTimeout how long in a
	// process that has handled none yet.
	HandleTimeout time.Duration `json:"handle_timeout_ns,omitempty"`
	FirstTimeout  time.Duration `json:"first_timeout_ns,omitempty"`

	// FinalOutput says that the stage's output leaves the pipeline;
	// FinalOutputType names its kind, such as "audio".
	FinalOutput     bool   `json:"final_output,omitempty"`
	FinalOutputType string `json:"final_output_type,omitempty"`
	// Settings are the keys of the stage that this package does not resolve.
	Settings Settings `json:"settings,omitempty"`
	Pos      Position `json:"pos"`
}

// Remote reports whether the stage's work is done by processes of its own.
func (s *Stage) Remote() bool { return len(s.Exec) > 0 || s.Attach }

// Batch says how many messages a stage takes at a time, and how long it waits
// for that many.
type Batch struct {
	Size int           `json:"size,omitempty"`
	Wait time.Duration `json:"wait_ns,omitempty"`
}

// An Edge carries messages from one stage to another.
type Edge struct {
	From      string    `json:"from"`
	To        string    `json:"to"`
	Connector Connector `json:"connector"`
	// WindowSize is the number of messages that may be under way at a time,
	// or Unbounded. Zero: the bus chooses.
	WindowSize int `json:"window_size,omitempty"`
	// WindowBytes bounds the payload bytes under way; a larger payload passes alone.
	// Zero: the bus chooses.
	WindowBytes int64  `json:"window_bytes,omitempty"`
	Policy      Policy `json:"policy,omitempty"`
	// TensorTransport is how tensors in GPU memory travel, and MinBytes how many
	// bytes of them a payload has at least for that; smaller ones go through host
	// memory. Both mean the same to a program without a lane of tensors.
	TensorTransport TensorTransport `json:"tensor_transport,omitempty"`
	MinBytes        int64           `json:"min_bytes,omitempty"`
	Pos             Position        `json:"pos"`
}

// Runnable returns nil if this build has a transport for every edge. The
// error wraps [ErrNoTransport] and a [Problem] for each edge without one.
func (p *Pipeline) Runnable() error {
	c := checker{file: p.File}
	for _, e := range p.Edges {
		if !runs(e.Connector.Type) {
			c.problemf(e.Pos, "the edge %s -> %s uses %s, which this build cannot run: %s", e.From, e.To, e.Connector, e.Connector.advice())
		}
	}
	if err := c.err(); err != nil {
		return fmt.Errorf("%w:\n%w", ErrNoTransport, err)
	}
	return nil
}
