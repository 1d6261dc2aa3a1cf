package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
)

// upstream is a request of this process that lives at the host. Here it is a
// request of a bus with one stage, the host, which takes the inputs and
// returns the results.
type upstream struct {
	link   *link
	source uint32
	req    *Request
	in     *arrivals // results
	out    *routes   // of inputs

	mu        sync.Mutex // guards what follows
	posting   *posting   // once the host's stage has the request
	asked     bool       // the stage waits for the end
	overSaid  bool       // the host has completed the request
	completed bool       // ... and all its results have come
}

// callerRequests is how many requests at a time, with full windows, the memory
// for a node's inputs is made for. Beyond that payloads get segments of their
// own.
const callerRequests = 4

// opened is the bus that carries what this process submits; nil: it has not.
func (l *link) opened() *Bus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.caller
}

// callers opens that bus unless it is open. Those who come meanwhile wait for it: it is
// work for each place that a request may have.
func (l *link) callers() error {
	if l.opened() != nil {
		return nil
	}
	l.calling.Lock()
	defer l.calling.Unlock()
	if l.opened() != nil {
		return nil
	}
	b, err := l.node.openCaller(l) // allocates memory, which takes a moment
	if err != nil {
		return err
	}
	l.mu.Lock()
	late := l.out == nil // the host is gone
	if !late {
		l.caller = b
	}
	l.mu.Unlock()
	if late {
		_ = b.Close(context.Background()) // it has never been used
		b.dropShared()
	}
	return nil
}

// openCaller opens the bus that carries what this process submits.
func (n *Node) openCaller(l *link) (*Bus, error) {
	st := newStage(StageSpec{Name: l.welcome.Bus, Remote: &Remote{}, Replicas: 1, MaxInflight: n.opts.MaxRequests, Attempts: 0})
	g := &graph{stages: []*stage{st}, byName: map[string]*stage{st.spec.Name: st}}
	for i, e := range l.welcome.Inputs {
		g.add(portEdge(e, "", e.Peer).withTensors(l.welcome.Tensors, i), nil, st)
	}
	for _, e := range l.welcome.Results {
		g.add(portEdge(e, e.Peer, "").fedByHost(), st, nil)
	}
	b, err := l.openPorts(g, callerRequests, max(callerRequests, n.opts.MaxRequests))
	if err != nil {
		return nil, err
	}
	st.remote.begin(st.remote.attach(hostAgent{l}, 0, false))
	return b, nil
}

// hostAgent stands for the host as the replica of the one stage that a node's
// requests go through.
type hostAgent struct{ link *link }

func (a hostAgent) describe() string { return "the host" }

func (a hostAgent) openTask(p *posting) {
	up := p.rt.task.outlet.req.up
	up.mu.Lock()
	defer up.mu.Unlock()
	up.posting = p
}

// deliverWork sends an input to the host. It is called with the stage's lock
// held.
func (a hostAgent) deliverWork(p *posting, w *work) error {
	d := w.parts[0]
	t := p.rt.task
	r := t.stage.remote
	up := t.outlet.req.up
	edge := slices.Index(t.stage.in, d.flow.edge)
	err := up.out.put(d, edge, func() { r.finished(w, nil) })
	if err != nil {
		t.outlet.req.end(Failed, err)
	}
	return err
}

// endTask waits for the host to say that the request is complete.
func (a hostAgent) endTask(p *posting) {
	up := p.rt.task.outlet.req.up
	up.mu.Lock()
	defer up.mu.Unlock()
	up.asked = true
	if up.completed {
		go p.replica.remote.answered(p, nil) // not under the lock
	}
}

func (a hostAgent) taskOver(*posting) {} // Request.end says so

// inputEnded tells the host that the inputs end here.
func (a hostAgent) inputEnded(t *Task) {
	faultpoint.Hit("node-before-close-send")
	t.outlet.req.up.out.endAll()
	a.link.queue(&wire.CloseSend{Source: t.outlet.req.up.source})
}

// Submit sends a request with one input: see Bus.Submit.
func (n *Node) Submit(ctx context.Context, v any, opts ...SubmitOption) (*Request, error) {
	r, err := n.submit(ctx, 0, opts)
	if err != nil {
		return nil, err
	}
	return sendOnly(ctx, r, v)
}

// TrySubmit is Submit for callers that would rather shed load than wait: when
// the host, or this node, has no place for the request, it returns
// ErrOverloaded.
func (n *Node) TrySubmit(ctx context.Context, v any, opts ...SubmitOption) (*Request, error) {
	r, err := n.submit(ctx, wire.SubmitTry, opts)
	if err != nil {
		return nil, err
	}
	return sendOnly(ctx, r, v)
}

// Stream starts a request whose inputs follow: see Bus.Stream.
func (n *Node) Stream(ctx context.Context, opts ...SubmitOption) (*Request, error) {
	return n.submit(ctx, 0, opts)
}

func (n *Node) submit(ctx context.Context, flags uint8, opts []SubmitOption) (*Request, error) {
	o, err := optionsOf(opts)
	if err != nil {
		return nil, fmt.Errorf("bus: submit: %w", err)
	}
	if own, ok := ctx.Deadline(); ok && (o.deadline.IsZero() || own.Before(o.deadline)) {
		o.deadline = own
	}
	asking, answered := untilDeadline(ctx, o.deadline) // the host may be stopped
	defer answered()
	l, err := n.current(asking)
	if err != nil {
		return nil, fmt.Errorf("bus: submit: %w", err)
	}
	if err := l.callers(); err != nil {
		return nil, fmt.Errorf("bus: submit: %w", err)
	}
	up := &upstream{link: l}
	err = up.ask(asking, flags, o, func(s *wire.Submitted) error { return up.begin(ctx, s, o) })
	if errors.Is(err, ErrEnded) { // before it began: the host says so at its deadline
		err = fmt.Errorf("%w: %w", ErrDeadline, err)
	}
	if err != nil {
		return nil, fmt.Errorf("bus: submit: %w", err)
	}
	return up.req, nil
}

// ask has the host begin a request. It is told when the context ends first: one that
// begins all the same is closed.
func (up *upstream) ask(ctx context.Context, flags uint8, o requestOptions, begin func(*wire.Submitted) error) error {
	l := up.link
	token, q, err := l.note(1, func(m wire.Message) error {
		s, ok := m.(*wire.Submitted)
		if !ok {
			return fmt.Errorf("%w: %v instead of submitted", wire.ErrProtocol, m.Kind())
		}
		return begin(s)
	})
	if err != nil {
		return err
	}
	m := &wire.Submit{Token: token, Flags: flags, Trace: wireTrace(o.trace)}
	if !o.deadline.IsZero() {
		m.Deadline = o.deadline.UnixNano()
	}
	if err = l.send(m); err == nil {
		_, err = l.await(ctx, q)
	}
	if l.settle(token) && ctx.Err() != nil && l.welcome.Version >= wire.KindCancel.Since() {
		l.queue(&wire.Cancel{Token: token}) // without effect if the answer is on its way
	}
	return err
}

// begin makes this process's side of a request that the host has begun. It
// runs on the link's reader: results may follow at once.
func (up *upstream) begin(ctx context.Context, s *wire.Submitted, o requestOptions) error {
	l := up.link
	up.source = s.Source
	caller := l.opened()
	if caller == nil {
		return ErrHostGone
	}
	up.out = newRoutes(l, s.Source, len(caller.graph.inputs))
	req, err := caller.tryStream(ctx, func(own *requestOptions) {
		*own = requestOptions{id: messages.RequestID(s.Request), trace: o.trace, up: up}
		if !o.deadline.IsZero() {
			own.until = o.deadline.UnixNano()
		}
	})
	if err != nil {
		l.queue(&wire.Close{Source: s.Source})
		return err
	}
	up.req = req
	up.in = newArrivals(req, caller.graph.results, false)
	l.mu.Lock()
	l.requests[s.Source] = up
	faultpoint.Hit("node-submitted")
	l.mu.Unlock()
	if req.over() { // its context ended meanwhile, when it was not known yet
		up.ended()
	}
	return nil
}

// ended tells the host that the request is over here.
func (up *upstream) ended() {
	l := up.link
	l.mu.Lock()
	known := l.requests[up.source] == up
	delete(l.requests, up.source)
	l.mu.Unlock()
	if !known {
		return
	}
	up.in.drop()
	if up.req.Outcome() == Completed {
		return
	}
	l.queue(&wire.AbortRequest{Source: up.source, Text: textBehind(ErrAborted, up.req.Err().Error())})
	l.queue(&wire.Close{Source: up.source})
}

// over ends the request as it ended at the host.
func (up *upstream) over(o Outcome, err error) {
	if o != Completed {
		up.in.drop()
		up.req.end(o, err)
		return
	}
	up.mu.Lock()
	up.overSaid = true
	up.mu.Unlock()
	up.in.over(up.complete)
}

// complete notes that the host has completed the request, and that all results
// are here.
func (up *upstream) complete() {
	go up.link.detach(up.req) // not under the lock of what came
	up.mu.Lock()
	defer up.mu.Unlock()
	up.completed = true
	if up.asked {
		go up.posting.replica.remote.answered(up.posting, nil) // its lock comes before this one
	}
}

// detach finishes the inputs of a request that is complete. Their payloads stay
// for whoever reads them, most likely the caller itself: a result may be an input
// that was passed on, and the request must not wait for its caller to be done.
func (l *link) detach(req *Request) {
	var finish []func()
	look := func(o *outgoing) {
		if o.d != nil && o.d.flow.req == req {
			finish = append(finish, o.detach())
		}
	}
	l.mu.Lock()
	for _, o := range l.out {
		look(o)
	}
	l.mu.Unlock()
	for _, p := range l.pairs() {
		p.mu.Lock()
		for _, o := range p.sent {
			look(o)
		}
		p.mu.Unlock()
	}
	for _, f := range finish {
		f()
	}
}

// hostGone ends the request, unless the host has completed it.
func (up *upstream) hostGone(err error) {
	up.mu.Lock()
	over := up.overSaid
	up.mu.Unlock()
	if !over {
		up.req.end(Failed, err)
	}
}

// leave ends what is open, gives everything back, and says goodbye. What this
// process emitted stays readable for others: they have it mapped.
func (l *link) leave(ctx context.Context) error {
	l.mu.Lock()
	if l.closing == nil {
		l.closing = ErrClosed
	}
	tasks, requests := l.tasks, l.requests
	if l.out != nil {
		l.tasks, l.requests = map[uint32]*nodeTask{}, map[uint32]*upstream{}
	}
	l.mu.Unlock()
	for _, t := range tasks {
		t.req.end(Aborted, ErrClosed) // and endTask drops what it waits for
	}
	for _, u := range requests {
		u.req.end(Aborted, ErrClosed)
		u.in.drop() // it is not known here any more: see ended
	}
	// Nothing is emitted any more, so that what others still read is safe.
	l.exchange.stop()
	l.returnAll()
	err := errors.Join(l.closeStages(ctx), l.closeCaller(ctx), l.closeExchange(ctx))
	l.closePairs()
	l.tellFigures()
	if err == nil || ofLostGPU(err) {
		l.queue(&wire.Bye{}) // without it the host waits until this process is dead
	}
	_ = l.sender.Close() // sends what is queued
	_ = l.conn.Close()
	return err
}

// returnAll takes all puts for returned, and those for which somebody is on the way
// here: their requests are over, and he looked before they were.
func (l *link) returnAll() {
	l.mu.Lock()
	out := l.out
	l.left = true
	if out != nil {
		l.out = make(map[uint32]*outgoing)
	}
	l.mu.Unlock()
	for _, o := range out {
		o.returned()
	}
	l.returning.Wait() // for those that the reader has in its hands
	l.returnPairs()
}

// returnPairs takes all that peers have for returned.
func (l *link) returnPairs() {
	for _, p := range l.pairs() {
		p.leave()
	}
}

// closeStages ends the work of stages, and waits for handlers.
func (l *link) closeStages(ctx context.Context) error {
	var errs []error
	for _, st := range l.served() {
		if err := st.bus.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stage %q: %w", st.name, err))
		}
	}
	return errors.Join(errs...)
}

// closeCaller ends what this process submitted, and waits for callers that hold
// results.
func (l *link) closeCaller(ctx context.Context) error {
	b := l.opened()
	if b == nil {
		return nil
	}
	if err := b.Close(ctx); err != nil {
		return fmt.Errorf("requests: %w", err)
	}
	return nil
}

// idle waits until no task is open at any of the stages, or the context ends.
func idle(ctx context.Context, stages []*nodeStage) {
	for _, st := range stages {
		if waitFor(ctx, &st.busy) != nil {
			return
		}
	}
}

// queue sends a message that the host has to have: a link that cannot send it ends,
// as one whose host is gone does, which the reader notices.
func (l *link) queue(m wire.Message) {
	if err := l.sender.Queue(m); err != nil && !errors.Is(err, peer.ErrClosed) {
		l.sender.Fail(err)
	}
}

// tell implements feeder.
func (l *link) tell(m wire.Message) bool {
	return l.sender.Queue(m) == nil && l.sender.Backlog() == 0
}

// leaving implements feeder.
func (l *link) leaving() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closing != nil
}
