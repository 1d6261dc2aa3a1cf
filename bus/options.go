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

	// What names in messages may have, in bytes; two stages' make that of an edge.
	maxBusName   = messages.MaxEdgeBytes
	MaxStageName = (messages.MaxEdgeBytes - len("->")) / 2
)

// nameable reports whether a name can be said to other processes.
func nameable(name string, most int) bool { return len(name) <= most && utf8.ValidString(name) }

// Unbounded, as an edge's window, leaves the number of deliveries to the byte
// window alone.
const Unbounded = -1

// Options configure a bus. The zero value works.
type Options struct {
	// Name appears in reports; default "omnibus".
	Name string
	// Store describes the payload store. It has Reuse, whatever this says. In shared memory its
	// ArenaBytes are 256 MiB by default, which are taken as they are filled. Its MaxLargeBytes bounds
	// the payloads that are larger than their edge's byte window, which lie in segments of
	// their own, and so each of them: in a bus the default is as much memory as the machine or
	// its control group has.
	Store shmstore.Options
	// MaxRequests bounds the requests that are open or have unread results;
	// default 16.
	MaxRequests int
	// InlineBytes is the largest payload that travels inside its delivery
	// instead of the store; default 512, negative for none.
	InlineBytes int
	// JoinBytes is the part of the store set aside for inputs that wait in a
	// join for the other branch; default a quarter of the store when the
	// pipeline has a join.
	JoinBytes int64
	// Overcommit lets byte windows that are set by name exceed the store together,
	// for requests that are seldom all under way at once. What has credit and
	// finds no room goes to the heap after a moment, as it does for want of room in one
	// piece.
	Overcommit bool
	// ExchangeTTL is how long a payload may lie in the exchange until somebody
	// comes for it; default 10 minutes, negative for ever.
	ExchangeTTL time.Duration
	// ExchangeStore describes the memory of what this process puts into the
	// exchange, and of values of up to 32 KiB that others put there, which may take half of it.
	// It is made with the first of that; default 64 MiB, and large objects of 1 GiB together.
	ExchangeStore shmstore.Options
	// GPU describes the lane that carries tensors in the memory of GPUs; nil: there
	// is none, and only tensors in host memory can be sent.
	GPU *GPUOptions
	// Serializer turns values into payloads; default msgpack.
	Serializer codec.Serializer
	// StallTimeout is how long something waits before it is reported, and how long
	// until it is again; default 10 s, negative for never. A report may be late by a
	// quarter of it.
	StallTimeout time.Duration
	// Wait is how goroutines that wait here for results wait for the processes that serve
	// stages; default what $OMNIBUS_WAIT says, and else WaitBalanced.
	Wait Wait
	// OnStall receives the reports, on a goroutine of the bus; nil logs them.
	OnStall func([]Stall)
	// Logger is told of panics, restarts and stalls; nil discards.
	Logger *slog.Logger

	spillAfter time.Duration       // tests have more patience with a slow machine
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

// storeOptions describe the store that a bus with these options has.
func (o Options) storeOptions() shmstore.Options {
	s := o.Store
	s.Reuse = true // nobody comes for a payload that all have finished
	d := s.WithDefaults()
	if s.MaxLargeBytes == 0 {
		s.KeepLargeBytes = d.ArenaBytes
		s.MaxLargeBytes = max(s.KeepLargeBytes, int64(min(memory.System().MaxBytes(), mostLargeBytes)))
	}
	if s.ArenaBytes == 0 && d.Memory == shmstore.Shared {
		// More room is for more bytes under way: it needs no larger directory.
		s.ArenaBytes, s.Slots, s.LargeObjectBytes = defaultArenaBytes, d.Slots, d.LargeObjectBytes
	}
	return s
}

// defaultArenaBytes is what the edges of a bus share for windows, if its store is in shared
// memory, which it takes as it fills it.
const defaultArenaBytes = 256 << 20

// mostLargeBytes is the most that large payloads get without being asked for.
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

// Pipeline is the graph a bus runs. Without stages the bus takes no requests, and keeps
// values under keys ([Bus.Exchange]).
type Pipeline struct {
	Stages []StageSpec
	Edges  []Edge
}

// Handler handles one delivery of one request. What it returns ends the
// request when it is not nil. When it returns, the delivery is finished,
// unless it was kept.
type Handler func(t *Task, d *Delivery) error

// JoinHandler handles one delivery from each of the stage's in-edges, all of
// one request and at the same place of their streams, in the order in which
// the pipeline lists the edges.
type JoinHandler func(t *Task, parts []*Delivery) error

// BatchHandler handles deliveries of several requests at once. Those it
// neither finished nor kept are finished when it returns; an error fails the
// requests of all that were not finished. On a node, where the pipeline says
// StateNone, a batch has one delivery of each request at most: the others that
// were gathered follow at once.
type BatchHandler func(batch []*Delivery) error

// Props is protoactor's description of an actor, so that code around a bus can
// name it without importing protoactor.
type Props = actors.Props

// State says what a stage loses when its handler panics.
type State = wire.State

const (
	// StateRequest: the stage gathers state for each request, which a panic
	// loses. The request fails, or is run again from its first input when
	// Replay is set.
	StateRequest = wire.StateRequest
	// StateNone: each delivery stands alone. The one that failed is delivered
	// again.
	StateNone = wire.StateNone
)

// StageSpec describes one stage: exactly one of Handle, Join, Batch, Props and
// Remote.
type StageSpec struct {
	Name   string
	Handle Handler
	Join   JoinHandler
	Batch  BatchHandler
	// Props is a protoactor actor of the user's own. It receives a *Delivery
	// for each delivery and the end of each stream, and finishes them; and an
	// *Ended when a request is over while it holds deliveries of it.
	// On a node it emits through Keep for one of several deliveries of a
	// request that it holds, for repeats to be recognised.
	Props *Props
	// Remote has other processes do the work.
	Remote *Remote
	// End runs after the last delivery of a request, to emit what is left.
	// Not for Props and Remote.
	End func(t *Task) error

	// Replicas run side by side; default 1. A request stays with one.
	Replicas int
	// MaxInflight is how many requests are open at one replica at a time; default 4. It
	// bounds requests, not handlers side by side: those of a replica take turns. To break a
	// circle of requests that wait for each other, the bus lets one more in.
	MaxInflight int
	// BatchSize and BatchWait bound a batch: it is handled when it has
	// BatchSize deliveries (default 8), or BatchWait after its first (default
	// 0: with whatever has arrived).
	BatchSize int
	BatchWait time.Duration
	// State, Attempts and Replay say what happens after a panic. Attempts is
	// how often a delivery (StateNone), or the request (Replay), is tried
	// again; default 1, negative for never.
	State    State
	Attempts int
	Replay   bool

	in  []reflect.Type // of Stage, Expand and the like, one for each edge; nil: unknown
	out reflect.Type
}

// Policy says what happens to a delivery that finds its edge's window full.
type Policy = wire.Policy

const (
	// Block makes the producer wait, for this request only.
	Block = wire.PolicyBlock
	// Fail has the emission fail with ErrWindowFull. The request goes on, unless a handler
	// returns the error: a caller whose Send fails may send again, or end its request.
	Fail = wire.PolicyFail
	// DropOldest drops the oldest delivery that has not left the producer's
	// queue; the next one carries the count. The end of a stream is never
	// dropped.
	DropOldest = wire.PolicyDropOldest
)

// Edge joins two stages. An empty From stands for the requests' inputs, an
// empty To for their results; such edges exist for the first and last stages
// without being listed, and are listed to set their windows.
type Edge struct {
	From, To string
	// Window is how many deliveries of one request may be under way: sent and
	// not finished. Default 64; Unbounded leaves it to WindowBytes.
	Window int
	// WindowBytes bounds the bytes of one request that are under way. A payload that is
	// larger passes alone, when all before it are finished, in a segment of its own.
	// Default: an equal share of the store.
	WindowBytes int64
	Policy      Policy
	// InlineBytes is the largest payload that travels inside its delivery on this edge, 32 KiB
	// at most. Default: that of the bus; negative for none.
	InlineBytes int
	// Tensors says how tensors travel that lie in memory of a GPU, and
	// TensorMinBytes from how many bytes on, together in one payload: smaller ones
	// travel by TensorsDefault. They are for the lane of tensors in the process
	// that emits, which a node's host tells of them; without one all travel by
	// TensorsDefault. An edge with a connector has no other.
	Tensors        TensorTransport
	TensorMinBytes int64
	// Connector, if it is set, carries the payloads of this edge: each is put
	// when it is sent, and got when it is handled, in the process of the bus.
	// Without one they stay in the store, and are read where they were
	// written. The bus closes it, also when it cannot be opened. It is for edges between two stages; edges may
	// share one.
	Connector *connector.Connector
}
