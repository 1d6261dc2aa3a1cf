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

// What other processes stand on: the names by which the ends of a bus at hosts and nodes
// know it. They see plain data, and ask for what they want by a method, so that what lies
// behind these names changes without them.

// Port is an edge as a process at one of its ends sees it.
type Port struct {
	Index          int    // among the edges of the pipeline
	Name           string // "from->to"
	Peer           string // the stage at the other end; empty: the caller
	Window         int    // deliveries, or Unbounded
	WindowBytes    int64
	Limit          uint64 // of one whose windows are kept elsewhere: deliveries that may be unfinished
	Policy         Policy
	Tensors        TensorTransport
	TensorMinBytes int64
}

// port is the edge as its consumer sees it.
func (e *edge) port() Port {
	return Port{
		Index: e.index, Name: e.name, Peer: e.spec.From, Window: e.spec.Window, WindowBytes: e.windowBytes, Limit: e.limit,
		Policy: e.spec.Policy, Tensors: e.spec.Tensors, TensorMinBytes: e.spec.TensorMinBytes,
	}
}

// buildPorts has the graph say what its ports are, when its windows are known.
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

// Feed takes in a delivery at a port that another process has numbered, and that has its
// place in the windows there.
func (c RequestControl) Feed(at Port, d *Delivery, after *AfterUnlock) {
	c.r.flows[at.Index].feed(d, after)
}

// Backend is a bus as the host's end of it sees it, wherever the work of the stages is done.
type Backend struct{ *Bus }

// Backend gives the bus to its end at a host or a node.
func (b *Bus) Backend() Backend { return Backend{b} }

// AcquirePermit takes a place for a request.
func (b Backend) AcquirePermit(ctx context.Context, o RequestOptions) error {
	return b.acquirePermit(ctx, o)
}

// Admit begins a request at the place that [Backend.Place] took, or gives the place back.
func (b Backend) Admit(ctx context.Context, o RequestOptions) (*Request, error) {
	return b.admit(ctx, o)
}

// DescribeHolders says which consumers have what is under way, with what went past this process.
func (b Backend) DescribeHolders(past []Stream) string { return b.describeHolders(past) }

// WatchStalls looks for stalls now and then, until done is closed, and has the bus report what
// look finds.
func (b Backend) WatchStalls(done <-chan struct{}, find func(atLeast time.Duration) []Stall) {
	b.watchStalls(done, find)
}

// Services is what a floor says of itself, once.
type Services struct {
	Name          string
	Opened        time.Time
	Stages        string // their names, for people
	Log           *slog.Logger
	InlineBytes   int   // of the largest payload that travels in messages
	ArenaBytes    int64 // that the store was asked to have
	MostBytes     int64 // of the largest payload
	Arena         *shmstore.Segment
	Inputs        []Port
	Results       []Port
	Permits       *pool.Pool              // for requests: see Place
	NoPermit      func(cause error) error // the error of a request that has waited for a place in vain
	Kept          *accounts.Views
	Exchange      *exchange.Exchange
	Directory     *directory.Directory
	TensorFigures *TensorFigures
	LastActive    *lastactive.Tracker
	Wait          Wait
	// HandleTimeout is the least of those of the stages; 0: none has one.
	HandleTimeout time.Duration
	Reclaim       func(part func() (more bool)) // by the supervisor: see actors.System.Reclaim
}

// Services gives what a host's end stands on. The store's arena is mapped once more for it.
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

// leastHandleTimeout is the least of those of the stages; 0: none has one.
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

// RemoteStage finds a stage whose work other processes do; nil: there is none of this name, or
// this process does the work.
func (b Backend) RemoteStage(name string) (st *RemoteStage, here bool) {
	if s := b.graph.byName[name]; s != nil {
		return s.remote, s.remote == nil
	}
	return nil, false
}

// ReplicaInfo is what the process behind a replica is told of the stage that it serves.
type ReplicaInfo struct {
	Stage     string
	Number    int // among the replicas
	Requests  int // that may be open there at a time
	State     State
	Join      bool
	Batch     int
	Ins, Outs []Port
}

// TaskInfo is what it is told of a task.
type TaskInfo struct {
	Request  *Request
	Task     *Task
	Output   Emitter   // what it emits by
	Attempt  int       // replays
	Deadline time.Time // zero: none
	Trace    messages.TraceContext
	Ports    []Port // that it emits on
	Replica  *Replica
}

// Assign has an agent speak about the task from here on. It gives what that is to tell the
// replica, whose emissions wait until cancel is closed.
func (p *ReplicaTask) Assign(to TaskConn, cancel <-chan struct{}) TaskInfo {
	p.conn = to
	t := p.rt.task
	r := t.outputs.req
	return TaskInfo{
		Request: r, Task: t, Output: Emitter{out: &t.outputs, cancel: cancel}, Attempt: p.rt.attempt,
		Deadline: r.deadline, Trace: r.trace, Ports: t.stage.outPorts, Replica: p.replica,
	}
}

// EmissionIndex is the place of an emission among those of a work, or of a request.
type EmissionIndex struct {
	output *output
	remote *RemoteStage
	n      uint64
	repeat bool
}

// Count numbers an emission that a replica makes for a task, and for a work of it unless
// that is nil. It does so once, and reports whether an earlier handling of the same input
// has made the emission.
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

// MarkSent notes that the emission went out, if it was counted.
func (o *EmissionIndex) MarkSent() {
	if o.output == nil {
		return
	}
	o.remote.mu.Lock()
	defer o.remote.mu.Unlock()
	o.output.markSent(o.n)
}

// NoWait is an emitter that does not wait.
func (c EmitterControl) NoWait() Emitter {
	c.e.cancel = atOnce
	return c.e
}

// WindowFull reports whether a window that it emits into has no place for another payload
// like those in it.
func (c EmitterControl) WindowFull() bool {
	e := c.e
	return slices.ContainsFunc(e.out.edges, func(to *edge) bool { return e.out.req.flow(to).full() })
}

// Emission is what there is to say of a payload that is sent.
type Emission struct {
	to    string
	Only  int // one edge, by its index among the stage's and one more; 0: all
	Key   string
	Attrs map[string]string
	Last  bool

	Put    Origin // nil: nothing asks what becomes of it
	copies bool   // the bus copies the payload, where a stage could have filled it in place
}

// Origin is what a client has put, which it keeps until it is told that it is needed no more.
type Origin interface {
	// Hold is for one delivery of it more, which ends with unhold.
	Hold()
	Unhold()
	// Spent says that credit comes back for a payload that is still needed.
	Spent(bytesToo bool)
}

// holdOrigin is an origin with a delivery more.
func holdOrigin(o Origin) Origin {
	if o != nil {
		o.Hold()
	}
	return o
}

// unholdOrigin ends a delivery of an origin.
func unholdOrigin(o Origin) {
	if o != nil {
		o.Unhold()
	}
}

// RequestOptions is what there is to say of a request when it begins.
type RequestOptions struct {
	Deadline time.Time // by the monotonic clock; zero: none
	Trace    messages.TraceContext
	// Of one that comes from another process, or goes to one.
	ID     messages.RequestID
	Client uint32       // whose turn it is to take slots: the number of the process that submitted it; 0: this one
	Try    bool         // it does not wait for its place, but ends with ErrOverloaded
	Now    bool         // it does not wait for its place yet: ErrCanceled
	Owner  RequestOwner // where it lives; nil: here
	Sink   Sink         // takes the results; nil: they are received here
}

// Stream is the stream of one request on one edge.
type Stream struct {
	flow    *flow
	Request *Request
	Index   int    // of the edge: see port
	Edge    string // its name
	To      string // the stage that it leads to; empty: the caller
	In      int    // the edge's index among those of that stage, or among the results
	Awaited bool   // this process waits for the results of the request

	// As it stands, unless it is that of a delivery:
	Deliveries int           // under way
	Bytes      int64         // ... of them
	Queued     int           // that wait for credit
	Waiting    time.Duration // since something began to wait
	Holder     Holder        // of what went past this process: who has it; nil: it did not
}

// Holder has deliveries, for reports.
type Holder interface{ Describe() string }

// Stream is the one that the delivery belongs to.
func (c DeliveryControl) Stream() Stream { return c.d.flow.stream() }

func (f *flow) stream() Stream {
	return Stream{flow: f, Request: f.req, Index: f.edge.index, Edge: f.edge.name, To: f.edge.spec.To, In: f.edge.in, Awaited: f.req.sink == nil}
}

// Stream is the request's at a port, as it stands.
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

// Consumer names the holder of the credit that a producer of the stream waits for.
func (s Stream) Consumer() string { return s.flow.holder() }

// DirectPath is how the rest of the stream goes, past this process; nil: through it.
func (s Stream) DirectPath() DirectPath {
	if by := s.flow.direct.Load(); by != nil {
		return *by
	}
	return nil
}

// DirectPath is the way of a stream past this process.
type DirectPath interface {
	// Sums is how much went there so far.
	Sums() (deliveries, bytes int64)
}

// OpenDirect has the rest of the stream go past this process, unless it does, or must not.
func (s Stream) OpenDirect(by DirectPath) bool {
	return s.flow.edge.direct() && s.flow.direct.CompareAndSwap(nil, &by)
}

// CloseDirect ends the stream, and counts what of it went past this process, when tell has told
// the consumer how much that was. Without effect it says how many deliveries came through here,
// and whether the stream had ended.
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

// SpaceWait is an emission of a request's that waits for room.
type SpaceWait struct {
	Waited time.Duration
	Wanted string // where, for people
}

// SpaceWaits are those that wait.
func (c RequestControl) SpaceWaits() (all []SpaceWait) {
	now := time.Now()
	for _, o := range c.r.allOutputs() {
		if waited, dev := o.spaceWaited(now); waited > 0 {
			all = append(all, SpaceWait{waited, o.describeSpace(dev)})
		}
	}
	return all
}

// Check looks for what is broken in the store while it is in use.
func (b Backend) Check() (found []shmstore.Violation, err error) {
	err = b.writer.Do(func(store *shmstore.Store) { found = store.Check() })
	return found, err
}

// Abort ends a request by its number. It reports whether it is alive.
func (b Backend) Abort(id messages.RequestID, reason error) bool {
	for _, r := range b.requests() {
		if r.id == id {
			r.Abort(reason)
			return true
		}
	}
	return false
}

// Part is what a node has of a pipeline that is elsewhere: one of its stages, or no more
// than the requests that the node submits.
type Part struct {
	Stage   *StageSpec // checked; nil: none
	OneEach bool       // see stage.oneEach
	// arriving are the ports at which deliveries come that the host has numbered, and whose
	// windows it keeps, leaving those by which they go.
	Arriving, Leaving []Port
	Requests          int // for how many, with full windows, there is to be memory
	Opts              Options
	LastActive        *lastactive.Tracker // of the node
	Lane              *lane.Lane
	Runs              *scoreboard.Writer // where the stage says which handler runs; nil: the host does not see it
	InlineBytes       int                // the largest payload that travels inside a message
}

// OpenedPart is a part that is open.
type OpenedPart struct {
	Bus             *Bus
	Arena           *accounts.Segment // its memory, as others have it
	Inputs, Results []Port            // of the bus, whose caller the host is, or this process
}

// EmittedFor is the delivery, as the host knows it, for which a stage has emitted this one,
// and whether its finish follows soon.
func (c DeliveryControl) EmittedFor() (cause uint32, soon bool) {
	d := c.d
	return d.cause, d.flow != nil && d.flow.producer.endsSoon()
}
