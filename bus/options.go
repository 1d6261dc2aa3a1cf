package bus

import (
	"fmt"
	"log/slog"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
	memory "github.com/omnibus-runtime/omnibus/internal/headroom"
	"github.com/omnibus-runtime/omnibus/internal/lastactive"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Defaults and bounds.
const (
	DefaultMaxRequests  = 16
	DefaultMaxInflight  = 4
	DefaultWindow       = 64
	DefaultInlineBytes  = 512
	DefaultStallTimeout = 10 * time.Second

	MaxStages   = 1024
	MaxInflight = 4096 // also of replicas; of a Batch stage in this process it is MaxRequests
	MaxRequests = 1 << 20
	MaxWindow   = 1 << 20 // also of a batch

	// Bounds of names in messages, in bytes. The name of an edge has those of two stages.
	maxBusName   = messages.MaxEdgeBytes
	MaxStageName = (messages.MaxEdgeBytes - len("->")) / 2
)

// nameable reports whether a name fits messages to other processes.
func nameable(name string, most int) bool { return len(name) <= most && utf8.ValidString(name) }

// Unbounded, as an edge's window, leaves the bound to the byte window, and to a count of 2²³ deliveries.
const Unbounded = -1

// Options configure a bus. The zero value works.
type Options struct {
	// Name appears in reports; default "omnibus".
	Name string
	// Store describes the payload store. Its Reuse is always on. In shared memory the default of
	// ArenaBytes is 256 MiB, which take memory only as they are filled. MaxLargeBytes bounds the
	// total of payloads in segments of their own, those larger than their edge's byte window, and so
	// each of them. Its default is the memory of the machine or its control group.
	Store shmstore.Options
	// MaxRequests bounds the requests that are running or have results that are
	// not finished; default 16.
	MaxRequests int
	// InlineBytes is the largest payload that travels inside its delivery
	// instead of the store; default 512, negative for none.
	InlineBytes int
	// JoinBytes is the part of the store set aside for inputs that wait in a
	// join for the other branch; default a quarter of the store when the
	// pipeline has a join.
	JoinBytes int64
	// Overcommit lets the byte windows that the pipeline sets exceed the store together,
	// for requests that are seldom active at the same time. A payload that has credit but
	// finds no space goes to the heap after 20 ms, as it does when the store is fragmented.
	Overcommit bool
	// ExchangeTTL is how long the exchange keeps a payload that no process has
	// fetched; default 10 minutes, negative for ever.
	ExchangeTTL time.Duration
	// ExchangeStore describes the memory of values that this process puts into the exchange, and
	// of values of up to 32 KiB from other processes, which may take half of it. It is made with
	// the first value; default 64 MiB, and 1 GiB of large objects in total.
	ExchangeStore shmstore.Options
	// GPU describes the lane that carries tensors in GPU memory; nil: there is none, and
	// only tensors in host memory can be sent.
	GPU *GPUOptions
	// Serializer turns values into payloads; default msgpack.
	Serializer codec.Serializer
	// StallTimeout is how long a wait lasts before it is reported as a stall. It is
	// reported again when the wait has doubled. Default 10 s, negative for never. A
	// report may be late by a quarter of it.
	StallTimeout time.Duration
	// Wait is how goroutines of this process wait for results from the processes that serve
	// stages; default $OMNIBUS_WAIT, and without that WaitBalanced.
	Wait Wait
	// OnStall receives the reports, on a goroutine of the bus; nil logs them.
	OnStall func([]Stall)
	// Logger logs panics, restarts and stalls; nil discards.
	Logger *slog.Logger

	spillAfter time.Duration       // tests on a slow machine wait longer
	lastActive *lastactive.Tracker // of a node; nil: the bus has one of its own
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = "omnibus"
	}
	if o.MaxRequests == 0 {
		o.MaxRequests = DefaultMaxRequests
	}
	if o.InlineBytes == 0 {
		o.InlineBytes = DefaultInlineBytes
	}
	o.InlineBytes = max(o.InlineBytes, 0)
	if o.Serializer == nil {
		o.Serializer = codec.MsgpackSerializer{}
	}
	if o.ExchangeTTL == 0 {
		o.ExchangeTTL = DefaultExchangeTTL
	}
	if o.StallTimeout == 0 {
		o.StallTimeout = DefaultStallTimeout
	}
	o.Wait = o.Wait.WithDefault()
	if o.spillAfter == 0 {
		o.spillAfter = spillAfter
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// storeOptions are the options of the bus's store.
func (o Options) storeOptions() shmstore.Options {
	s := o.Store
	s.Reuse = true // a finished payload has no further reader
	d := s.WithDefaults()
	if s.MaxLargeBytes == 0 {
		s.KeepLargeBytes = d.ArenaBytes
		s.MaxLargeBytes = max(s.KeepLargeBytes, int64(min(memory.System().MaxBytes(), mostLargeBytes)))
	}
	if s.ArenaBytes == 0 && d.Memory == shmstore.Shared {
		// A larger arena is for more bytes in flight: it needs no larger directory.
		s.ArenaBytes, s.Slots, s.LargeObjectBytes = defaultArenaBytes, d.Slots, d.LargeObjectBytes
	}
	return s
}

// defaultArenaBytes is the default arena in shared memory, which takes memory only as it is filled.
const defaultArenaBytes = 256 << 20

// mostLargeBytes bounds the default of MaxLargeBytes.
const mostLargeBytes = 1 << 40

func (o Options) validate() error {
	if o.MaxRequests < 1 || o.MaxRequests > MaxRequests {
		return fmt.Errorf("%w: MaxRequests is %d: use 1 to %d", ErrConfig, o.MaxRequests, MaxRequests)
	}
	if !nameable(o.Name, maxBusName) {
		return fmt.Errorf("%w: Name has %d bytes: use up to %d, of UTF-8", ErrConfig, len(o.Name), maxBusName)
	}
	if o.JoinBytes < 0 {
		return fmt.Errorf("%w: JoinBytes is %d: use 0 for the default, or a number of bytes", ErrConfig, o.JoinBytes)
	}
	return o.Wait.Validate()
}

// Pipeline is the graph that a bus runs. Without stages the bus takes no requests and has
// only its exchange ([Bus.Exchange]).
type Pipeline struct {
	Stages []StageSpec
	Edges  []Edge
}

// Handler handles one delivery of one request. A non-nil error ends the
// request. When the handler returns, the delivery is finished, unless it was
// kept.
type Handler func(t *Task, d *Delivery) error

// JoinHandler handles one delivery from each of the stage's in-edges, all of
// one request and at the same position of their streams, in the order in which
// the pipeline lists the edges.
type JoinHandler func(t *Task, parts []*Delivery) error

// BatchHandler handles deliveries of several requests at once. Deliveries that
// it has neither finished nor kept are finished when it returns; an error fails
// their requests. On a node, for a stage with StateNone, a batch has at most one
// delivery of each request: further ones follow in the next call.
type BatchHandler func(batch []*Delivery) error

// Props is protoactor's description of an actor: a program can name the type
// without importing protoactor.
type Props = actors.Props

// State says whether a stage loses state when its handler panics.
type State = wire.State

const (
	// StateRequest: the stage has state for each request, which a panic
	// loses. The request fails, or with Replay is run again from its first
	// input.
	StateRequest = wire.StateRequest
	// StateNone: deliveries are independent. After a panic the failed delivery
	// is handled again.
	StateNone = wire.StateNone
)

// StageSpec describes one stage: exactly one of Handle, Join, Batch, Props and
// Remote.
type StageSpec struct {
	Name   string
	Handle Handler
	Join   JoinHandler
	Batch  BatchHandler
	// Props is a protoactor actor of the program. It receives a *Delivery for
	// each delivery and for the end of each stream, and finishes them. It
	// receives an *Ended when a request is over while it holds deliveries of it.
	// On a node, an actor that holds several deliveries of one request emits
	// through Keep of one of them, so that the host recognises repeats.
	Props *Props
	// Remote has other processes serve the stage.
	Remote *Remote
	// End runs after the last delivery of a request, and may still emit.
	// Not for Props and Remote.
	End func(t *Task) error

	// Replicas run concurrently; default 1. A request stays with one.
	Replicas int
	// MaxInflight is how many requests are open at one replica at a time; default 4. It
	// bounds requests, not concurrent handlers: a replica runs one handler at a time. To break a
	// cycle of requests that wait for each other's slots, the bus admits one more request.
	MaxInflight int
	// BatchSize and BatchWait bound a batch: it is handled when it has
	// BatchSize deliveries (default 8), or BatchWait after its first (default
	// 0: with the deliveries that have arrived by then).
	BatchSize int
	BatchWait time.Duration
	// State, Attempts and Replay are the policy after a panic. Attempts is how
	// often a delivery (StateNone), or the request (Replay), is handled again;
	// default 1, negative for never.
	State    State
	Attempts int
	Replay   bool

	in  []reflect.Type // the input types of Stage, Expand and Join2, by edge; nil: unknown
	out reflect.Type
}

// Policy says how an emission proceeds when its edge's window is full.
type Policy = wire.Policy

const (
	// Block makes the producer wait, for this request only.
	Block = wire.PolicyBlock
	// Fail makes the emission fail with ErrWindowFull. The request goes on, unless a handler
	// returns the error: a caller whose Send fails may send again, or end its request.
	Fail = wire.PolicyFail
	// DropOldest lets deliveries without credit wait in a queue as large as the window, and
	// drops the oldest one when the queue is full; the next delivery carries the count. The
	// end of a stream is never dropped.
	DropOldest = wire.PolicyDropOldest
)

// Edge joins two stages. An empty From stands for the inputs of requests, an
// empty To for their results. The first and last stages have such edges by
// default; a pipeline lists them to set their windows.
type Edge struct {
	From, To string
	// Window is how many deliveries of one request may be in flight: sent and
	// not finished. Default 64; with Unbounded only WindowBytes bounds them.
	Window int
	// WindowBytes bounds the bytes of one request that are in flight. A larger payload
	// travels alone, when all before it are finished, in a segment of its own.
	// Default: an equal share of the store.
	WindowBytes int64
	Policy      Policy
	// InlineBytes is the largest payload that travels inside its delivery on this edge, at most
	// 32 KiB. Default: Options.InlineBytes; negative for none.
	InlineBytes int
	// Tensors is the transport of tensors in GPU memory. TensorMinBytes is the
	// smallest total size of the tensors of one payload for it: smaller ones travel
	// by TensorsDefault. Both apply to the lane of the emitting process, which on a
	// node gets them from the host; without a lane all tensors travel by
	// TensorsDefault. An edge with a connector allows only TensorsDefault.
	Tensors        TensorTransport
	TensorMinBytes int64
	// Connector, if set, carries the payloads of this edge: the process of the bus puts
	// each payload when it is sent, and gets it when it is handled. Without a connector
	// payloads stay in the store and are read in place. The bus closes the connector, also
	// when Open fails. It is for edges between two stages; edges may share one.
	Connector *connector.Connector
}
