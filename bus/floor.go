package bus

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/directory"
	"github.com/omnibus-runtime/omnibus/internal/exchange"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// What other processes stand on: the names by which the ends of a bus at hosts and nodes
// know it. They see plain data, and ask for what they want by a method, so that what lies
// behind these names changes without them.

// port is an edge as a process at one of its ends sees it.
type port struct {
	index          int    // among the edges of the pipeline
	name           string // "from->to"
	peer           string // the stage at the other end; empty: the caller
	window         int    // deliveries, or Unbounded
	windowBytes    int64
	limit          uint64 // of one whose windows are kept elsewhere: deliveries that may be unfinished
	policy         Policy
	tensors        TensorTransport
	tensorMinBytes int64
}

// port is the edge as its consumer sees it.
func (e *edge) port() port {
	return port{
		index: e.index, name: e.name, peer: e.spec.From, window: e.spec.Window, windowBytes: e.windowBytes, limit: e.limit,
		policy: e.spec.Policy, tensors: e.spec.Tensors, tensorMinBytes: e.spec.TensorMinBytes,
	}
}

// describe has the graph say what its ports are, when its windows are known.
func (g *graph) describe() {
	in := func(edges []*edge) (all []port) {
		for _, e := range edges {
			all = append(all, e.port())
		}
		return all
	}
	out := func(edges []*edge) []port {
		all := in(edges)
		for i, e := range edges {
			all[i].peer = e.spec.To
		}
		return all
	}
	g.inputPorts, g.resultPorts = out(g.inputs), in(g.results)
	for _, st := range g.stages {
		st.inPorts, st.outPorts = in(st.in), out(st.out)
	}
}

// feed takes in a delivery at a port that another process has numbered, and that has its
// place in the windows there.
func (r *Request) feed(at port, d *Delivery) { r.flows[at.index].feed(d) }

// floor is what the host's end of a bus stands on: a pipeline, wherever the work of its stages
// is done.
type floor interface {
	footing() (footing, error)
	station(name string) (st *remote, here bool)
	place(ctx context.Context, o opening) error
	admit(ctx context.Context, o opening) (*Request, error)
	abort(id messages.RequestID, reason error) bool
	check() ([]shmstore.Violation, error)
	statuses() []RequestStatus
	holders(past []stream) string
	watchStalls(done <-chan struct{}, look func(atLeast time.Duration) []Stall)
	Stats() Stats
	Stalls(atLeast time.Duration) []Stall
}

var _ floor = (*Bus)(nil)

// footing is what a floor says of itself, once.
type footing struct {
	name        string
	opened      time.Time
	stages      string // their names, for people
	log         *slog.Logger
	laterWait   time.Duration // of what travels with the next packet; 0: as usual
	inlineBytes int           // of the largest payload that travels in messages
	arenaBytes  int64         // that the store was asked to have
	mostBytes   int64         // of the largest payload
	arena       *shmstore.Segment
	inputs      []port
	results     []port
	kept        *ledger.Views
	exchange    *exchange.Exchange
	directory   *directory.Directory
	figures     *tensorFigures
	heard       *heard
	wait        Wait
	reclaim     func(part func() (more bool)) // by the supervisor: see actors.System.Reclaim
}

// footing gives what a host's end stands on. The store's arena is mapped once more for it.
func (b *Bus) footing() (footing, error) {
	arena, err := b.store.ArenaSegment()
	return footing{
		name: b.opts.Name, opened: b.opened, stages: b.graph.names(), log: b.opts.Logger, laterWait: b.opts.laterWait,
		inlineBytes: min(b.leastBytes-1, wire.MaxInline), arenaBytes: b.opts.Store.ArenaBytes, mostBytes: b.store.MaxObjectBytes(),
		inputs: b.graph.inputPorts, results: b.graph.resultPorts, arena: arena, kept: &b.kept, exchange: b.exchange, directory: b.directory, figures: &b.tensorFigures, heard: b.heard, wait: b.opts.Wait,
		reclaim: b.system.Reclaim,
	}, err
}

// station finds a stage whose work other processes do; nil: there is none of this name, or
// this process does the work.
func (b *Bus) station(name string) (st *remote, here bool) {
	if s := b.graph.byName[name]; s != nil {
		return s.remote, s.remote == nil
	}
	return nil, false
}

// seat is what the process behind a replica is told of the stage that it serves.
type seat struct {
	stage     string
	number    int // among the replicas
	requests  int // that may be open there at a time
	state     State
	join      bool
	batch     int
	ins, outs []port
}

// assignment is what it is told of a task.
type assignment struct {
	request  *Request
	task     *Task
	output   Emitter // what it emits by
	attempt  int     // replays
	deadline int64   // unix nanoseconds; 0: none
	trace    messages.TraceContext
	ports    []port // that it emits on
	replica  *replica
}

// assign has an agent speak about the task from here on. It gives what that is to tell the
// replica, whose emissions wait until cancel is closed.
func (p *posting) assign(to taskAgent, cancel <-chan struct{}) assignment {
	p.agent = to
	t := p.rt.task
	r := t.outlet.req
	return assignment{
		request: r, task: t, output: Emitter{out: &t.outlet, cancel: cancel}, attempt: p.rt.attempt,
		deadline: r.deadline, trace: r.trace, ports: t.stage.outPorts, replica: p.replica,
	}
}

// ordinal is the place of an emission among those of a work, or of a request.
type ordinal struct {
	of     *output
	remote *remote
	n      uint64
	repeat bool
}

// count numbers an emission that a replica makes for a task, and for a work of it unless
// that is nil. It does so once, and reports whether an earlier handling of the same input
// has made the emission.
func (o *ordinal) count(p *posting, w *work) (repeat bool) {
	if o.n > 0 {
		return o.repeat
	}
	o.of, o.remote = &p.rt.output, p.replica.remote
	o.remote.mu.Lock()
	defer o.remote.mu.Unlock()
	if w != nil && o.remote.stage.spec.State == StateNone {
		o.of = &w.output
	}
	o.n, o.repeat = o.of.next()
	return o.repeat
}

// went notes that the emission went out, if it was counted.
func (o *ordinal) went() {
	if o.of == nil {
		return
	}
	o.remote.mu.Lock()
	defer o.remote.mu.Unlock()
	o.of.went(o.n)
}

// trying is an emitter that does not wait.
func (e Emitter) trying() Emitter {
	e.cancel = atOnce
	return e
}

// pressed reports whether a window that it emits into has no place for another payload
// like those in it.
func (e Emitter) pressed() bool {
	return slices.ContainsFunc(e.out.edges, func(to *edge) bool { return e.out.req.flow(to).full() })
}

// emission is what there is to say of a payload that is sent.
type emission struct {
	to    string
	only  int // one edge, by its index among the stage's and one more; 0: all
	key   string
	attrs map[string]string
	last  bool

	put    origin // nil: nothing asks what becomes of it
	copies bool   // the bus copies the payload, where a stage could have filled it in place
}

// origin is what a client has put, which it keeps until it is told that it is needed no more.
type origin interface {
	// hold is for one delivery of it more, which ends with unhold.
	hold()
	unhold()
	// spent says that credit comes back for a payload that is still needed.
	spent(bytesToo bool)
}

// held is an origin with a delivery more.
func held(o origin) origin {
	if o != nil {
		o.hold()
	}
	return o
}

// unheld ends a delivery of an origin.
func unheld(o origin) {
	if o != nil {
		o.unhold()
	}
}

// opening is what there is to say of a request when it begins.
type opening struct {
	deadline time.Time
	trace    messages.TraceContext
	// Of one that comes from another process, or goes to one.
	id    messages.RequestID
	until int64 // the host's deadline, unix nanoseconds
	try   bool  // it does not wait for its place, but ends with ErrOverloaded
	now   bool  // it does not wait for its place yet: errCanceled
	up    home  // where it lives; nil: here
	sink  sink  // takes the results; nil: they are received here
}

// stream is the stream of one request on one edge.
type stream struct {
	flow    *flow
	request *Request
	index   int    // of the edge: see port
	edge    string // its name
	to      string // the stage that it leads to; empty: the caller
	in      int    // the edge's index among those of that stage, or among the results
	awaited bool   // this process waits for the results of the request

	// As it stands, unless it is that of a delivery:
	deliveries int           // under way
	bytes      int64         // ... of them
	queued     int           // that wait for credit
	waiting    time.Duration // since something began to wait
	holder     holder        // of what went past this process: who has it; nil: it did not
}

// holder has deliveries, for reports.
type holder interface{ describe() string }

// stream is the one that the delivery belongs to.
func (d *Delivery) stream() stream { return d.flow.stream() }

func (f *flow) stream() stream {
	return stream{flow: f, request: f.req, index: f.edge.index, edge: f.edge.name, to: f.edge.spec.To, in: f.edge.in, awaited: f.req.sink == nil}
}

// stream is the request's at a port, as it stands.
func (r *Request) stream(at port) stream {
	f := &r.flows[at.index]
	s := f.stream()
	s.deliveries, s.bytes = f.underWay()
	s.queued = int(f.queued.Load())
	if since := f.waitingSince(); since != 0 {
		s.waiting = max(time.Since(time.Unix(0, since)), 1)
	}
	return s
}

// past is how the rest of the stream goes, past this process; nil: through it.
func (s stream) past() bypass {
	if by := s.flow.direct.Load(); by != nil {
		return *by
	}
	return nil
}

// bypass is the way of a stream past this process.
type bypass interface {
	// sums is how much went there so far.
	sums() (deliveries, bytes int64)
}

// goPast has the rest of the stream go past this process, unless it does, or must not.
func (s stream) goPast(by bypass) bool {
	return s.flow.edge.once() && s.flow.direct.CompareAndSwap(nil, &by)
}

// endPast ends the stream, and counts what of it went past this process, when tell has told
// the consumer how much that was. Without effect it says how many deliveries came through here,
// and whether the stream had ended.
func (s stream) endPast(deliveries uint64, bytes int64, tell func(past uint64)) (through uint64, ended bool) {
	f := s.flow
	o := f.outlet()
	o.mu.Lock()
	through, ended = f.seq, f.ended
	if ended || deliveries < through {
		o.mu.Unlock()
		return through, ended
	}
	n := int64(deliveries - through) //nolint:gosec // bounded by learn
	f.sent.add(sent{deliveries: n, direct: n, bytes: bytes})
	f.counted = true
	o.mu.Unlock()
	tell(deliveries - through)
	o.endStream(f)
	return through, false
}

// roomWaiting is an emission of a request's that waits for room.
type roomWaiting struct {
	waited time.Duration
	wanted string // where, for people
}

// rooms are those that wait.
func (r *Request) rooms() (all []roomWaiting) {
	now := time.Now()
	for _, o := range r.outlets() {
		if waited, dev := o.waitedForRoom(now); waited > 0 {
			all = append(all, roomWaiting{waited, o.wanted(dev)})
		}
	}
	return all
}

// check looks for what is broken in the store while it is in use.
func (b *Bus) check() (found []shmstore.Violation, err error) {
	err = b.writer.Do(func(store *shmstore.Store) { found = store.Check() })
	return found, err
}

// abort ends a request by its number. It reports whether it is alive.
func (b *Bus) abort(id messages.RequestID, reason error) bool {
	for _, r := range b.requests() {
		if r.id == id {
			r.Abort(reason)
			return true
		}
	}
	return false
}

// part is what a node has of a pipeline that is elsewhere: one of its stages, or no more
// than the requests that the node submits.
type part struct {
	stage   *StageSpec // checked; nil: none
	oneEach bool       // see stage.oneEach
	// arriving are the ports at which deliveries come that the host has numbered, and whose
	// windows it keeps, leaving those by which they go.
	arriving, leaving []port
	requests          int // for how many, with full windows, there is to be memory
	opts              Options
	heard             *heard // of the node
	lane              *lane.Lane
	inlineBytes       int // the largest payload that travels inside a message
}

// opened is a part that is open.
type opened struct {
	bus             *Bus
	arena           *ledger.Segment // its memory, as others have it
	inputs, results []port          // of the bus, whose caller the host is, or this process
}

// emittedFor is the delivery, as the host knows it, for which a stage has emitted this one,
// and whether its finish follows soon.
func (d *Delivery) emittedFor() (cause uint32, soon bool) {
	return d.cause, d.flow != nil && d.flow.producer.endsSoon()
}
