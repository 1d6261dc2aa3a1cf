package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/directory"
	"github.com/omnibus-runtime/omnibus/internal/exchange"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/lastactive"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/pool"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Bus is a running pipeline. Its methods are safe for concurrent use.
type Bus struct {
	opts      Options
	graph     *graph
	codecs    *codec.Registry
	opened    time.Time
	keyPrefix string // begins the keys of payloads that connectors carry

	store         *shmstore.Store
	node          bool              // it is a node's: its edges lead to a host
	shared        *accounts.Segment // of a node: the store's arena, as other processes map it
	system        *actors.System
	writer        *actors.Writer
	inputProducer *actors.Producer
	exchange      *exchange.Exchange   // nil: a node's
	directory     *directory.Directory // nil: a node's

	gpu        GPUOptions
	lane       *lane.Lane
	ownLane    bool // it is closed with the bus
	sender     *lane.Sender
	leastBytes int // the size of the smallest payload that does not travel inside a message
	sweepDue   atomic.Bool

	tensorFigures TensorFigures // reported by other processes
	lastActive    *lastactive.Tracker

	permits   pool.Pool // one for each request that may be alive
	admission admission
	kept      accounts.Views // in the store
	joinBytes atomic.Int64   // of inputs that wait in joins
	joinLimit int64
	outcomes  [PastDeadline + 1]atomic.Int64
	lastID    atomic.Uint64

	closing   chan struct{}
	closeOnce sync.Once
	stopMu    lockorder.Right[lockorder.BusStop] // one stop at a time
	stopped   bool                               // all is closed; guarded by stopMu
	watchDone chan struct{}

	mu        lockorder.Mutex[lockorder.Bus] // guards the fields below and edge.sent; no request begins after closing is closed
	live      map[uint64]*Request            // by Request.key
	lastOrder map[uint32]uint64              // by client: the order of its last request, while one is alive
	idle      chan struct{}                  // closed when live becomes empty; nil: no goroutine waits
}

// Open checks the pipeline, takes the memory for its store, and starts its
// stages. The errors wrap ErrConfig, or are the store's.
func Open(ctx context.Context, p Pipeline, opts Options) (*Bus, error) {
	b, err := openPipeline(ctx, p, opts.withDefaults())
	if err != nil {
		return nil, errors.Join(err, closeConnectors(p.Edges))
	}
	return b, nil
}

// EdgeBounds are the bounds of the payloads of one edge, in bytes.
type EdgeBounds struct {
	From   string `json:"from"` // empty: the caller
	To     string `json:"to"`   // empty: the caller
	Window int64  `json:"window_bytes"`
	// Largest is the largest payload. One that is larger than the window travels alone.
	Largest int64 `json:"largest_bytes"`
}

// Bounds checks a pipeline and its options as [Open] does, with the same errors, and returns the bounds
// of the edges. It opens nothing.
func (p Pipeline) Bounds(opts Options) ([]EdgeBounds, error) {
	opts = opts.withDefaults()
	g, err := compileFor(p, opts)
	if err != nil {
		return nil, err
	}
	store := opts.storeOptions()
	if err := store.Validate(); err != nil {
		return nil, fmt.Errorf("bus: open: %w", err)
	}
	store = store.WithDefaults()
	if err := g.sizeWindows(store.ArenaBytes, g.joinSpace(opts.JoinBytes, store.ArenaBytes), opts.MaxRequests, opts.Overcommit); err != nil {
		return nil, err
	}
	all := make([]EdgeBounds, len(g.edges))
	for i, e := range g.edges {
		all[i] = EdgeBounds{From: e.spec.From, To: e.spec.To, Window: e.windowBytes, Largest: store.MaxObjectBytes}
	}
	return all, nil
}

// compileFor compiles a pipeline and checks the options.
func compileFor(p Pipeline, opts Options) (*graph, error) {
	g, err := compile(p)
	return g, errors.Join(opts.validate(), err)
}

func openPipeline(ctx context.Context, p Pipeline, opts Options) (*Bus, error) {
	g, err := compileFor(p, opts)
	if err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("bus: open: %w", err)
	}
	return openGraph(ctx, g, opts, nil)
}

// openGraph opens a bus over a checked graph. The bus of a node gets the node's lane in of, and the
// windows of its edges come from the host.
func openGraph(ctx context.Context, g *graph, opts Options, of *lane.Lane) (*Bus, error) {
	node := of != nil
	codecs, err := registry(opts.Serializer)
	if err != nil {
		return nil, err
	}
	store, err := shmstore.Create(opts.storeOptions())
	if err != nil {
		return nil, fmt.Errorf("bus: open: %w", err)
	}
	b := &Bus{
		opts: opts, graph: g, codecs: codecs, opened: time.Now(), keyPrefix: newKeyPrefix(), store: store, node: node,
		closing: make(chan struct{}), watchDone: make(chan struct{}),
		live: make(map[uint64]*Request), lastOrder: make(map[uint32]uint64),
	}
	if !node {
		b.exchange, b.directory = newExchange(opts), directory.New(ErrClosed)
	}
	if err := b.openSender(ctx, of); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	if err := b.start(); err != nil {
		return nil, errors.Join(err, b.closeSender(ctx), store.Close())
	}
	return b, nil
}

// registry holds the built-in serializers, the one of bundles, which other
// processes send without being asked, and the serializer of the bus.
func registry(s codec.Serializer) (*codec.Registry, error) {
	r := codec.Default()
	if err := r.Register(bundle.Serializer{}); err != nil {
		return nil, fmt.Errorf("bus: open: %w", err)
	}
	if known, err := r.ByName(s.Name()); err == nil && known == s {
		return r, nil
	}
	if err := r.Register(s); err != nil {
		return nil, fmt.Errorf("%w: Serializer: %w", ErrConfig, err)
	}
	return r, nil
}

func (b *Bus) start() error {
	arena := b.store.Stats().ArenaBytes
	b.joinLimit = b.graph.joinSpace(b.opts.JoinBytes, arena)
	if b.node {
		b.joinLimit = maxWindowBytes // the host has set the space aside
	} else if err := b.graph.sizeWindows(arena, b.joinLimit, b.opts.MaxRequests, b.opts.Overcommit); err != nil {
		return err
	}
	b.graph.buildPorts()
	b.permits.Add(b.opts.MaxRequests)
	var spinner *actors.Spinner // for the stages of a node: clients of a host do not wait for the host's stages
	if b.lastActive = b.opts.lastActive; b.lastActive != nil {
		spinner = b.lastActive.Spinner()
	} else {
		b.lastActive = lastactive.New(b.opts.Wait.Spinner)
	}
	b.system = actors.NewSystem(actors.Options{Logger: b.opts.Logger, Spinner: spinner})
	b.writer = b.system.NewWriter(b.store)
	b.inputProducer = b.writer.NewProducer()
	b.admission.stages, b.admission.unbounded = b.graph.stages, b.node
	for _, st := range b.graph.stages {
		if err := st.start(b); err != nil {
			return errors.Join(err, b.stop(context.Background()))
		}
	}
	go func() {
		defer close(b.watchDone)
		var permits permitWatch
		b.watchStalls(b.closing, func(atLeast time.Duration) []Stall { return b.findStalls(&permits, atLeast) })
	}()
	return nil
}

func (b *Bus) now() time.Duration { return time.Since(b.opened) }

func (b *Bus) nextKey() uint64 { return b.lastID.Add(1) }

// SubmitOption adjusts one request.
type SubmitOption func(*RequestOptions)

// WithDeadline ends the request with ErrDeadline at that time, unless it is over. A wall-clock time is converted to
// the monotonic clock at the submit: setting the wall clock later has no effect.
func WithDeadline(at time.Time) SubmitOption {
	return func(o *RequestOptions) { o.Deadline = at }
}

// WithTrace has every delivery of the request carry the trace context. A trace state that does not fit
// a message between processes is refused with a [*messages.MalformedError].
func WithTrace(tc messages.TraceContext) SubmitOption {
	return func(o *RequestOptions) { o.Trace = tc }
}

// Submit sends a request with one input, which goes to every first stage. It
// waits for a permit (MaxRequests) and for slots of the first stages. The context is
// the request's from then on: when the context ends, so does the request.
func (b *Bus) Submit(ctx context.Context, v any, opts ...SubmitOption) (*Request, error) {
	r, err := b.Stream(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return sendOnly(ctx, r, v)
}

// TrySubmit is Submit for callers that shed load instead of waiting: without a
// free permit or slot it returns ErrOverloaded at once.
func (b *Bus) TrySubmit(ctx context.Context, v any, opts ...SubmitOption) (*Request, error) {
	r, err := b.tryStream(ctx, opts...)
	if err != nil {
		return nil, err
	}
	for _, e := range b.graph.inputs {
		if r.wantSlot(r.flow(e).consumer); !r.flow(e).consumerOpen() {
			r.Close()
			return nil, fmt.Errorf("%w: stage %q has no slot free: %d replicas hold %d requests each", ErrOverloaded, e.spec.To, e.to.spec.Replicas, e.to.spec.MaxInflight)
		}
	}
	return sendOnly(ctx, r, v)
}

// sendOnly sends the only input of a request. After an error the request is closed.
func sendOnly(ctx context.Context, r *Request, v any) (*Request, error) {
	if err := r.Send(ctx, v, Last()); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// tryStream is Stream without the wait for a permit.
func (b *Bus) tryStream(ctx context.Context, opts ...SubmitOption) (*Request, error) {
	return b.beginRequest(ctx, true, opts)
}

// Stream starts a request without inputs: Send them, then CloseSend. It waits
// for a permit (MaxRequests). The context is the request's from then on.
func (b *Bus) Stream(ctx context.Context, opts ...SubmitOption) (*Request, error) {
	return b.beginRequest(ctx, false, opts)
}

// beginRequest begins a request with a caller's options. With try it does not wait for a permit.
func (b *Bus) beginRequest(ctx context.Context, try bool, opts []SubmitOption) (*Request, error) {
	o, err := RequestOptionsOf(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("bus: submit: %w", err)
	}
	o.Try = try
	if err := b.acquirePermit(ctx, o); err != nil {
		return nil, err
	}
	return b.admit(ctx, o)
}

// acquirePermit takes a permit for admit. It waits for one until the context ends, unless the options
// forbid the wait.
func (b *Bus) acquirePermit(ctx context.Context, o RequestOptions) error {
	if len(b.graph.edges) == 0 {
		return fmt.Errorf("%w: the bus has no stages: it keeps values under keys and takes no requests", ErrConfig)
	}
	switch {
	case b.permits.TryTake():
		return nil
	case o.Try:
		return fmt.Errorf("%w: %d requests are alive, MaxRequests is %d", ErrOverloaded, b.Stats().Live, b.opts.MaxRequests)
	case o.Now:
		return ErrCanceled
	}
	if !b.permits.Wait(ctx.Done()) {
		return b.noPermit(submitEnded(ctx))
	}
	return nil
}

// submitEnded is the error of a submit whose context has ended before the request began.
func submitEnded(ctx context.Context) error {
	cause := context.Cause(ctx)
	switch {
	case !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return cause
	case errors.Is(cause, context.DeadlineExceeded):
		return ErrDeadline
	}
	return fmt.Errorf("%w: %w", ErrDeadline, cause)
}

// noPermit is the error of a request whose wait for a permit has ended with cause.
func (b *Bus) noPermit(cause error) error {
	live, most := b.Stats().Live, b.opts.MaxRequests
	return fmt.Errorf("bus: submit: %d requests are alive, MaxRequests is %d: %w", live, most, cause)
}

// RequestOptionsOf applies options, and the deadline of a context. It allocates only if there are options.
func RequestOptionsOf(ctx context.Context, opts []SubmitOption) (o RequestOptions, err error) {
	if len(opts) > 0 {
		given := new(RequestOptions)
		for _, opt := range opts {
			opt(given)
		}
		o = *given
	}
	o.limitDeadline(ctx)
	return o, messages.ValidateTraceState(o.Trace.State)
}

// admit begins a request with its permit, or returns the permit.
func (b *Bus) admit(ctx context.Context, o RequestOptions) (*Request, error) {
	if ctx.Err() != nil {
		b.permits.Give()
		return nil, fmt.Errorf("bus: submit: %w", submitEnded(ctx))
	}
	b.mu.Lock()
	if b.closed() {
		b.mu.Unlock()
		b.permits.Give() // the next waiting request then fails here, too
		return nil, ErrClosed
	}
	faultpoint.Hit("bus-admits")
	r := newRequest(ctx, b, o)
	b.live[r.key] = r
	b.putInOrder(r)
	b.mu.Unlock()
	r.watch()
	return r, nil
}

// putInOrder, with mu held, orders a request behind the earlier ones of its client. Requests of other
// clients that have no slot yet alternate with it.
func (b *Bus) putInOrder(r *Request) {
	r.order = max(b.lastOrder[r.client], b.admission.served.Load()) + 1
	b.lastOrder[r.client] = r.order
}

func (b *Bus) closed() bool {
	select {
	case <-b.closing:
		return true
	default:
		return false
	}
}

// forget removes a request whose references are all released, and returns its permit.
func (b *Bus) forget(r *Request) {
	for i := range r.flows {
		r.flows[i].freezeSent()
	}
	b.mu.Lock()
	for i, e := range b.graph.edges {
		e.sent.add(r.flows[i].sent) // final after freezeSent
	}
	delete(b.live, r.key)
	if b.lastOrder[r.client] == r.order {
		delete(b.lastOrder, r.client)
	}
	if len(b.live) == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
	}
	b.mu.Unlock()
	b.permits.Give()
}

// requests is a snapshot of the live requests, by id.
func (b *Bus) requests() []*Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sorted()
}

// request finds a live request by its id; nil: there is none.
func (b *Bus) request(id messages.RequestID) *Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.live {
		if r.id == id {
			return r
		}
	}
	return nil
}

// sorted, with mu held, returns the live requests by id.
func (b *Bus) sorted() []*Request {
	return slices.SortedFunc(maps.Values(b.live), func(x, y *Request) int { return cmp.Compare(x.id, y.id) })
}

// tasksAt returns the tasks that are open at a worker.
func (b *Bus) tasksAt(w *worker) []*Task {
	var ts []*Task
	for _, r := range b.requests() {
		t := &r.tasks[w.stage.index]
		if s := t.slot.Load(); s != nil && s.worker == w {
			ts = append(ts, t)
		}
	}
	return ts
}

// AbortAll aborts all requests that are not over.
func (b *Bus) AbortAll(reason error) {
	for _, r := range b.requests() {
		r.Abort(reason)
	}
}

// Drain waits until no request is alive: all are over, and their results received
// and finished. New requests may begin meanwhile.
func (b *Bus) Drain(ctx context.Context) error {
	b.mu.Lock()
	if len(b.live) == 0 {
		b.mu.Unlock()
		return nil
	}
	if b.idle == nil {
		b.idle = make(chan struct{})
	}
	idle := b.idle
	b.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("bus: %s: %w", b.describeLive(), context.Cause(ctx))
	}
}

// describeLive says for what each live request waits.
func (b *Bus) describeLive() string {
	var left []string
	for _, r := range b.requests() {
		left = append(left, r.describe())
	}
	return "still alive: " + strings.Join(left, "; ")
}

// Close aborts open requests, waits for handlers to return, stops the stages
// and releases the memory. When a handler does not return before the context
// ends, the error names it and nothing is released; Close may be called again.
// Broken invariants of the store and unreleased payloads are errors that wrap
// ErrNotClean.
func (b *Bus) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closeOnce.Do(func() { close(b.closing) })
	b.mu.Unlock()
	for _, r := range b.requests() {
		r.Abort(ErrClosed)
		r.closeResults(false)
	}
	if err := b.Drain(ctx); err != nil {
		return fmt.Errorf("bus: close: %w", err)
	}
	<-b.watchDone
	return b.stop(ctx)
}

// stop stops the actors and closes the store, once no request is alive. If the
// context ends first, the next call does the rest.
func (b *Bus) stop(ctx context.Context) error {
	b.stopMu.Lock() // several goroutines may close a bus
	defer b.stopMu.Unlock()
	if b.stopped {
		return nil
	}
	b.inputProducer.Close()
	broken := b.lastCheck()
	err := errors.Join(b.writer.Close(ctx), b.system.Close(ctx))
	if err == nil {
		err = b.closeSender(ctx)
	}
	if err == nil {
		err = accounts.Unmapped(ctx)
	}
	if err != nil && ctx.Err() != nil {
		return errors.Join(broken, err)
	}
	b.stopped = true
	return errors.Join(broken, err, closeConnectors(b.graph.specs()), b.store.Close())
}

// lastCheck reports broken invariants and unreleased payloads, in its first call.
func (b *Bus) lastCheck() error {
	var broken []error
	err := b.writer.Do(func(s *shmstore.Store) {
		for _, v := range s.Check() {
			broken = append(broken, fmt.Errorf("%w: %s: %s", ErrNotClean, v.Invariant, v.Detail))
		}
		for _, h := range s.Holders() {
			broken = append(broken, fmt.Errorf("%w: payloads were not given back: %v", ErrNotClean, h))
		}
	})
	if errors.Is(err, actors.ErrStopped) {
		return nil // closed before
	}
	if b.exchange != nil { // nil: a node's
		broken = append(broken, closeExchange(b.exchange))
		b.directory.Close()
	}
	return errors.Join(broken...)
}
