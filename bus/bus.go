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
	keyPrefix string // begins the keys of what connectors carry

	store         *shmstore.Store
	node          bool              // a node's: its edges end at a host
	shared        *accounts.Segment // the store's arena, as others have it, of a node's; see opened
	system        *actors.System
	writer        *actors.Writer
	inputProducer *actors.Producer
	exchange      *exchange.Exchange   // nil: a node's
	directory     *directory.Directory // nil: a node's

	gpu        GPUOptions
	lane       *lane.Lane
	ownLane    bool // it is closed with the bus
	sender     *lane.Sender
	leastBytes int // of a payload that does not travel inside a message
	sweepDue   atomic.Bool

	tensorFigures TensorFigures // of other processes
	lastActive    *lastactive.Tracker

	permits   pool.Pool // one for each request that may be alive
	admission admission
	kept      accounts.Views // in the store
	joinBytes atomic.Int64   // held by inputs that wait in joins
	joinLimit int64
	outcomes  [PastDeadline + 1]atomic.Int64
	lastID    atomic.Uint64

	closing   chan struct{}
	closeOnce sync.Once
	stopMu    lockorder.Right[lockorder.BusStop] // one stop at a time
	stopped   bool                               // nothing is left to be closed; guarded by stopMu
	watchDone chan struct{}

	mu        lockorder.Mutex[lockorder.Bus] // guards what follows and edge.sent; no request begins behind closing
	live      map[uint64]*Request            // by Request.key
	lastOrder map[uint32]uint64              // the order of the last request of each client that has one alive
	idle      chan struct{}                  // closed when live empties; nil: no goroutine waits
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
	// Largest is the largest payload. One that is larger than the window passes alone.
	Largest int64 `json:"largest_bytes"`
}

// Bounds reports what [Open] would refuse of a pipeline and its options, and else the bounds of
// its edges; it opens nothing. The errors are those of Open.
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

// compileFor compiles a pipeline for a bus with options, which it checks.
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

// openGraph opens a bus over a checked graph. A node's has the node's lane, and its
// edges have their windows from the host.
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

// registry holds the built-in serializers, that of values with tensors in them,
// which other processes send by themselves, and the bus's own.
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
		b.joinLimit = maxWindowBytes // the host has set the room aside
	} else if err := b.graph.sizeWindows(arena, b.joinLimit, b.opts.MaxRequests, b.opts.Overcommit); err != nil {
		return err
	}
	b.graph.buildPorts()
	b.permits.Add(b.opts.MaxRequests)
	var spinner *actors.Spinner // of stages: those of a host are not what its clients wait for
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

// WithDeadline ends the request with ErrDeadline when it is not over by then. A deadline of the wall clock counts from
// the submit on: to set that clock later changes nothing.
func WithDeadline(at time.Time) SubmitOption {
	return func(o *RequestOptions) { o.Deadline = at }
}

// WithTrace has every delivery of the request carry the trace context. One whose state
// no message between processes takes is refused with a [*messages.MalformedError].
func WithTrace(tc messages.TraceContext) SubmitOption {
	return func(o *RequestOptions) { o.Trace = tc }
}

// Submit sends a request with one input, which goes to every first stage. It
// waits for a place among MaxRequests and at the first stages. The context is
// the request's from then on: when it ends, so does the request.
func (b *Bus) Submit(ctx context.Context, v any, opts ...SubmitOption) (*Request, error) {
	r, err := b.Stream(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return sendOnly(ctx, r, v)
}

// TrySubmit is Submit for callers that would rather shed load than wait: when
// there is no place for the request, it returns ErrOverloaded at once.
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

// sendOnly sends the one input of a request, which is no request without it.
func sendOnly(ctx context.Context, r *Request, v any) (*Request, error) {
	if err := r.Send(ctx, v, Last()); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// tryStream is Stream for callers that do not wait for a place.
func (b *Bus) tryStream(ctx context.Context, opts ...SubmitOption) (*Request, error) {
	return b.beginRequest(ctx, true, opts)
}

// Stream starts a request whose inputs follow: Send them, then CloseSend. It
// waits for a place among MaxRequests; the context is the request's from then
// on.
func (b *Bus) Stream(ctx context.Context, opts ...SubmitOption) (*Request, error) {
	return b.beginRequest(ctx, false, opts)
}

// beginRequest begins a request with a caller's options, which is not to wait for its place if try is set.
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

// acquirePermit takes a place among MaxRequests, for admit. It waits for one as long as the context
// lets it, unless the request is not to wait.
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

// submitEnded is the error of a request that has not begun when its context has ended.
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

// noPermit is the error of a request that has waited for a place in vain.
func (b *Bus) noPermit(cause error) error {
	live, most := b.Stats().Live, b.opts.MaxRequests
	return fmt.Errorf("bus: submit: %d requests are alive, MaxRequests is %d: %w", live, most, cause)
}

// RequestOptionsOf applies options, and the deadline of a context. Only where there are options do they take memory
// of their own.
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

// admit begins a request at its place.
func (b *Bus) admit(ctx context.Context, o RequestOptions) (*Request, error) {
	if ctx.Err() != nil {
		b.permits.Give()
		return nil, fmt.Errorf("bus: submit: %w", submitEnded(ctx))
	}
	b.mu.Lock()
	if b.closed() {
		b.mu.Unlock()
		b.permits.Give() // the next that waits finds out the same way
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

// putInOrder, with mu held, puts a request behind those that its client has submitted before. Those of
// other clients that have not come to a slot yet take turns with it.
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

// forget is called when nothing of a request is left.
func (b *Bus) forget(r *Request) {
	for i := range r.flows {
		r.flows[i].freezeSent()
	}
	b.mu.Lock()
	for i, e := range b.graph.edges {
		e.sent.add(r.flows[i].sent) // which changes no more
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

// requests is a snapshot of those alive.
func (b *Bus) requests() []*Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sorted()
}

// request finds a request that is alive by its id; nil: there is none.
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

// sorted, with mu held, is the requests alive by their ids.
func (b *Bus) sorted() []*Request {
	return slices.SortedFunc(maps.Values(b.live), func(x, y *Request) int { return cmp.Compare(x.id, y.id) })
}

// tasksAt gives the tasks that a worker has open.
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

// AbortAll aborts the requests that are open.
func (b *Bus) AbortAll(reason error) {
	for _, r := range b.requests() {
		r.Abort(reason)
	}
}

// Drain waits until no request is alive: all are over, their results received
// and finished. It does not keep new ones out.
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

// describeLive names what requests that are not gone wait for.
func (b *Bus) describeLive() string {
	var left []string
	for _, r := range b.requests() {
		left = append(left, r.describe())
	}
	return "still alive: " + strings.Join(left, "; ")
}

// Close aborts what is open, waits for handlers to return, stops the stages
// and gives the memory back. When a handler does not return before the context
// ends, Close names it and leaves everything in place; it may be called again.
// It reports broken invariants of the store and payloads that were not given
// back, should there be any: those errors wrap ErrNotClean.
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

// stop ends actors and store, once no request is alive. What the context did not
// leave the time for is for the next call.
func (b *Bus) stop(ctx context.Context) error {
	b.stopMu.Lock() // two may close a bus at a time
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

// lastCheck looks for what is broken, or was not given back, unless it has.
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
	if b.exchange != nil { // else it is a node's
		broken = append(broken, closeExchange(b.exchange))
		b.directory.Close()
	}
	return errors.Join(broken...)
}
