package bus

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/directory"
	"github.com/omnibus-runtime/omnibus/internal/exchange"
	"github.com/omnibus-runtime/omnibus/internal/lastactive"
	"github.com/omnibus-runtime/omnibus/internal/pool"
	"github.com/omnibus-runtime/omnibus/internal/scoreboard"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// This file has the interface between a bus and packages bus/host and bus/node, which connect it
// to other processes. They see plain data and call methods, so that the code behind these names
// can change without them.

// Port is an edge, as seen by a process at one of its ends.
type Port struct {
	Index          int    // among the edges of the pipeline
	Name           string // "from->to"
	Peer           string // the stage at the other end; empty: the caller
	Window         int    // deliveries, or Unbounded
	WindowBytes    int64
	Limit          uint64 // if the host keeps the window: deliveries that may be unfinished
	Policy         Policy
	Tensors        TensorTransport
	TensorMinBytes int64
}

// port is the edge, as its consumer sees it.
func (e *edge) port() Port {
	return Port{
		Index: e.index, Name: e.name, Peer: e.spec.From, Window: e.spec.Window, WindowBytes: e.windowBytes, Limit: e.limit,
		Policy: e.spec.Policy, Tensors: e.spec.Tensors, TensorMinBytes: e.spec.TensorMinBytes,
	}
}

// buildPorts sets the ports of the graph and of its stages. The windows are known by then.
func (g *graph) buildPorts() {
	in := func(edges []*edge) (all []Port) {
		for _, e := range edges {
			all = append(all, e.port())
		}
		return all
	}
	out := func(edges []*edge) []Port {
		all := in(edges)
		for i, e := range edges {
			all[i].Peer = e.spec.To
		}
		return all
	}
	g.inputPorts, g.resultPorts = out(g.inputs), in(g.results)
	for _, st := range g.stages {
		st.inPorts, st.outPorts = in(st.in), out(st.out)
	}
}

// Feed takes in a delivery at a port. Another process has numbered the delivery, and has counted it
// in its window.
func (c RequestControl) Feed(at Port, d *Delivery, after *AfterUnlock) {
	c.r.flows[at.Index].feed(d, after)
}

// Backend is a bus, as packages bus/host and bus/node use it.
type Backend struct{ *Bus }

// Backend gives the bus to package bus/host or bus/node.
func (b *Bus) Backend() Backend { return Backend{b} }

// AcquirePermit takes a permit for a request.
func (b Backend) AcquirePermit(ctx context.Context, o RequestOptions) error {
	return b.acquirePermit(ctx, o)
}

// Admit begins a request with the permit that [Backend.AcquirePermit] took. After an error the permit
// is returned.
func (b Backend) Admit(ctx context.Context, o RequestOptions) (*Request, error) {
	return b.admit(ctx, o)
}

// DescribeHolders names the consumers that have deliveries in flight. past are the streams on direct
// paths, whose deliveries this process does not see.
func (b Backend) DescribeHolders(past []Stream) string { return b.describeHolders(past) }

// WatchStalls calls find several times per stall timeout and reports the stalls that it returns,
// until done is closed.
func (b Backend) WatchStalls(done <-chan struct{}, find func(atLeast time.Duration) []Stall) {
	b.watchStalls(done, find)
}

// Services are the parts and settings of a bus that packages bus/host and bus/node use.
type Services struct {
	Name          string
	Opened        time.Time
	Stages        string // their names, for reports
	Log           *slog.Logger
	InlineBytes   int   // of the largest payload that travels in messages
	ArenaBytes    int64 // as configured for the store
	MostBytes     int64 // of the largest payload
	Arena         *shmstore.Segment
	Inputs        []Port
	Results       []Port
	Permits       *pool.Pool              // one for each request: see AcquirePermit
	NoPermit      func(cause error) error // the error of a request that got no permit
	Kept          *accounts.Views
	Exchange      *exchange.Exchange
	Directory     *directory.Directory
	TensorFigures *TensorFigures
	LastActive    *lastactive.Tracker
	Wait          Wait
	// HandleTimeout is the shortest one of the stages; 0: no stage has one.
	HandleTimeout time.Duration
	Reclaim       func(part func() (more bool)) // run by the supervisor: see actors.System.Reclaim
}

// Services returns the parts and settings of the bus. Arena is a mapping of its own, for the caller to close.
func (b Backend) Services() (Services, error) {
	arena, err := b.store.ArenaSegment()
	return Services{
		Name: b.opts.Name, Opened: b.opened, Stages: b.graph.names(), Log: b.opts.Logger,
		InlineBytes: min(b.leastBytes-1, wire.MaxInline), ArenaBytes: b.opts.Store.ArenaBytes, MostBytes: b.store.MaxObjectBytes(),
		Inputs: b.graph.inputPorts, Results: b.graph.resultPorts, Permits: &b.permits, NoPermit: b.noPermit,
		Arena: arena, Kept: &b.kept, Exchange: b.exchange, Directory: b.directory, TensorFigures: &b.tensorFigures, LastActive: b.lastActive, Wait: b.opts.Wait,
		HandleTimeout: b.graph.leastHandleTimeout(), Reclaim: b.system.Reclaim,
	}, err
}

// leastHandleTimeout is the shortest HandleTimeout of the stages; 0: no stage has one.
func (g *graph) leastHandleTimeout() (least time.Duration) {
	for _, st := range g.stages {
		if st.remote == nil || st.remote.spec.HandleTimeout == 0 {
			continue
		}
		if least == 0 || st.remote.spec.HandleTimeout < least {
			least = st.remote.spec.HandleTimeout
		}
	}
	return least
}

// RemoteStage finds a stage that other processes serve; nil: there is no stage of this name, or
// this process serves it, which here reports.
func (b Backend) RemoteStage(name string) (st *RemoteStage, here bool) {
	if s := b.graph.byName[name]; s != nil {
		return s.remote, s.remote == nil
	}
	return nil, false
}

// ReplicaInfo describes a stage to a process that serves it.
type ReplicaInfo struct {
	Stage     string
	Number    int // of the replica
	Requests  int // that may be open at the replica at a time
	State     State
	Join      bool
	Batch     int
	Ins, Outs []Port
}

// TaskInfo describes a task to a process that serves its stage.
type TaskInfo struct {
	Request  *Request
	Task     *Task
	Output   Emitter   // emits for the process
	Attempt  int       // replays
	Deadline time.Time // zero: none
	Trace    messages.TraceContext
	Ports    []Port // of the out-edges
	Replica  *Replica
}

// Assign sets the connection that carries the task from here on. It returns the description of the
// task for the replica. Emissions of the replica that wait stop waiting when cancel is closed.
func (p *ReplicaTask) Assign(to TaskConn, cancel <-chan struct{}) TaskInfo {
	p.conn = to
	t := p.rt.task
	r := t.outputs.req
	return TaskInfo{
		Request: r, Task: t, Output: Emitter{out: &t.outputs, cancel: cancel}, Attempt: p.rt.attempt,
		Deadline: r.deadline, Trace: r.trace, Ports: t.stage.outPorts, Replica: p.replica,
	}
}

// EmissionIndex is the number of an emission among those of a work, or of a request.
type EmissionIndex struct {
	output *output
	remote *RemoteStage
	n      uint64
	repeat bool
}

// Count numbers an emission that a replica makes for a task, and for one work of the task unless w
// is nil. Further calls change nothing. It reports whether an earlier handling of the same input
// has sent this emission already.
func (o *EmissionIndex) Count(p *ReplicaTask, w *Work) (repeat bool) {
	if o.n > 0 {
		return o.repeat
	}
	o.output, o.remote = &p.rt.output, p.replica.remote
	o.remote.mu.Lock()
	defer o.remote.mu.Unlock()
	if w != nil && o.remote.stage.spec.State == StateNone {
		o.output = &w.output
	}
	o.n, o.repeat = o.output.next()
	return o.repeat
}

// MarkSent notes that the emission was sent, if it was counted.
func (o *EmissionIndex) MarkSent() {
	if o.output == nil {
		return
	}
	o.remote.mu.Lock()
	defer o.remote.mu.Unlock()
	o.output.markSent(o.n)
}

// NoWait is the emitter, with emissions that fail with ErrCanceled where they would wait.
func (c EmitterControl) NoWait() Emitter {
	c.e.cancel = atOnce
	return c.e
}

// WindowFull reports whether a window of the emitter's edges has no credit for another payload of the
// average size of those in the window.
func (c EmitterControl) WindowFull() bool {
	e := c.e
	return slices.ContainsFunc(e.out.edges, func(to *edge) bool { return e.out.req.flow(to).full() })
}

// Emission has the labels and the target of an emission.
type Emission struct {
	to    string
	Only  int // one edge: its index among the stage's out-edges, plus 1; 0: all
	Key   string
	Attrs map[string]string
	Last  bool

	Put    Origin // of a payload that a client has put; nil: another payload
	copies bool   // the bus copies the payload that a stage could have filled in place
}

// Origin is a payload that a client has put. The client keeps it until the last hold has ended.
type Origin interface {
	// Hold counts one more delivery of the payload, which ends with Unhold.
	Hold()
	Unhold()
	// Spent tells the client that a delivery has returned its window credit while the payload is still
	// needed; bytesToo: the credit for the bytes, too.
	Spent(bytesToo bool)
}

// holdOrigin counts one more delivery of an origin, unless it is nil.
func holdOrigin(o Origin) Origin {
	if o != nil {
		o.Hold()
	}
	return o
}

// unholdOrigin ends a delivery of an origin, unless it is nil.
func unholdOrigin(o Origin) {
	if o != nil {
		o.Unhold()
	}
}

// RequestOptions are the settings with which a request begins.
type RequestOptions struct {
	Deadline time.Time // by the monotonic clock; zero: none
	Trace    messages.TraceContext
	// Of a request that another process has submitted, or that a node submits to its host:
	ID     messages.RequestID
	Client uint32       // the number of the process that submitted it, for the order of slots; 0: this process
	Try    bool         // it does not wait for a permit, but fails with ErrOverloaded
	Now    bool         // it does not wait for a permit, but fails with ErrCanceled: the caller waits later
	Owner  RequestOwner // the request at its host; nil: this process owns it
	Sink   Sink         // takes the results; nil: the caller receives them in this process
}

// Stream is the stream of one request on one edge.
type Stream struct {
	flow    *flow
	Request *Request
	Index   int    // of the edge: see Port
	Edge    string // its name
	To      string // the stage that it leads to; empty: the caller
	In      int    // the edge's index among those of that stage, or among the results
	Awaited bool   // this process waits for the results of the request

	// The present state; not set in the stream of a delivery:
	Deliveries int           // in flight
	Bytes      int64         // in flight
	Queued     int           // deliveries that wait for credit
	Waiting    time.Duration // how long the producer, or the queue, has waited; 0: neither waits
	Holder     Holder        // the holder of deliveries on the direct path; nil: there is no direct path
}

// Holder describes a process that holds deliveries, for reports.
type Holder interface{ Describe() string }

// Stream is the stream of the delivery.
func (c DeliveryControl) Stream() Stream { return c.d.flow.stream() }

func (f *flow) stream() Stream {
	return Stream{flow: f, Request: f.req, Index: f.edge.index, Edge: f.edge.name, To: f.edge.spec.To, In: f.edge.in, Awaited: f.req.sink == nil}
}

// Stream is the stream of the request at a port, with its present state.
func (c RequestControl) Stream(at Port) Stream {
	r := c.r
	f := &r.flows[at.Index]
	s := f.stream()
	s.Deliveries, s.Bytes = f.inFlight()
	s.Queued = int(f.queued.Load())
	if since := f.waitingSince(); since != 0 {
		s.Waiting = max(time.Since(time.Unix(0, since)), 1)
	}
	return s
}

// Consumer names the holder of the credit for which a producer of the stream waits.
func (s Stream) Consumer() string { return s.flow.holder() }

// DirectPath is the direct path of the rest of the stream; nil: it goes through this process.
func (s Stream) DirectPath() DirectPath {
	if by := s.flow.direct.Load(); by != nil {
		return *by
	}
	return nil
}

// DirectPath is the path of a stream between two processes without this one.
type DirectPath interface {
	// Sums counts the deliveries and bytes on the path so far.
	Sums() (deliveries, bytes int64)
}

// OpenDirect sends the rest of the stream by a direct path. It reports false when the stream has a
// direct path already, or its edge allows none.
func (s Stream) OpenDirect(by DirectPath) bool {
	return s.flow.edge.direct() && s.flow.direct.CompareAndSwap(nil, &by)
}

// CloseDirect ends a stream of so many deliveries in all, and bytes bytes on its direct path, which it
// counts. Before the end is sent, tell tells the consumer how many deliveries the direct path had. Where
// the stream has ended, or fewer deliveries are named than came through this process, CloseDirect does
// nothing. It returns how many came through this process, and whether the stream had ended.
func (s Stream) CloseDirect(deliveries uint64, bytes int64, tell func(past uint64)) (through uint64, ended bool) {
	f := s.flow
	o := f.outputs()
	o.mu.Lock()
	through, ended = f.seq, f.ended
	if ended || deliveries < through {
		o.mu.Unlock()
		return through, ended
	}
	if n := int64(deliveries - through); !f.counted { //nolint:gosec // bounded by learn
		f.sent.add(sent{deliveries: n, direct: n, bytes: bytes})
		f.counted = true
	}
	o.mu.Unlock()
	tell(deliveries - through)
	o.endStream(f)
	return through, false
}

// SpaceWait is an emission of a request that waits for space.
type SpaceWait struct {
	Waited time.Duration
	Wanted string // the memory that is full, for reports
}

// SpaceWaits lists the emissions of the request that wait for space.
func (c RequestControl) SpaceWaits() (all []SpaceWait) {
	now := time.Now()
	for _, o := range c.r.allOutputs() {
		if waited, dev := o.spaceWaited(now); waited > 0 {
			all = append(all, SpaceWait{waited, o.describeSpace(dev)})
		}
	}
	return all
}

// Check reports broken invariants of the store, which stays in use.
func (b Backend) Check() (found []shmstore.Violation, err error) {
	err = b.writer.Do(func(store *shmstore.Store) { found = store.Check() })
	return found, err
}

// Abort aborts a request by its id. It reports whether the request was alive.
func (b Backend) Abort(id messages.RequestID, reason error) bool {
	for _, r := range b.requests() {
		if r.id == id {
			r.Abort(reason)
			return true
		}
	}
	return false
}

// Part is a node's part of a pipeline whose host is another process: one of its stages, or only the
// requests that the node submits.
type Part struct {
	Stage   *StageSpec // checked; nil: none
	OneEach bool       // see stage.oneEach
	// Arriving are the ports at which deliveries come in: the host has numbered them and keeps the
	// windows. Leaving are the ports by which deliveries go out.
	Arriving, Leaving []Port
	Requests          int // the memory is for the full windows of so many
	Opts              Options
	LastActive        *lastactive.Tracker // of the node
	Lane              *lane.Lane
	Runs              *scoreboard.Writer // records the running handler for the host; nil: the host does not see it
	InlineBytes       int                // the largest payload that travels inside a message
}

// OpenedPart is a part that is open.
type OpenedPart struct {
	Bus             *Bus
	Arena           *accounts.Segment // its memory, as other processes map it
	Inputs, Results []Port            // of the bus; its caller is the host, or this process
}

// EmittedFor returns the delivery, by the host's number, for which a stage has emitted this one, and
// whether the finish of that delivery follows soon.
func (c DeliveryControl) EmittedFor() (cause uint32, soon bool) {
	d := c.d
	return d.cause, d.flow != nil && d.flow.producer.endsSoon()
}
