package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/waiting"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// remoteRequest is a request of this process that lives at the host. Its graph has no stage: what
// is sent goes to the host, and what comes from there are the results.
type remoteRequest struct {
	link   *link
	source uint32
	req    *bus.Request
	in     resequencer // results
	out    routes      // of inputs

	inputs  atomic.Int32 // streams that have not ended
	answers chan error   // whether the host has a place; nil: Submit does not ask

	mu       lockorder.Mutex[lockorder.Upstream] // guards what follows
	overSaid bool                                // the host has completed the request
}

// callerRequests is how many requests at a time, with full windows, the memory
// for a node's inputs is made for. Beyond that payloads get segments of their
// own.
const callerRequests = 4

// callers opens the bus that carries what this process submits, unless it is open. Those who
// come meanwhile wait for it: it is work for each place that a request may have.
func (l *link) callers() error {
	if l.begun.carrier() != nil {
		return nil
	}
	l.calling.Lock()
	defer l.calling.Unlock()
	if l.begun.carrier() != nil {
		return nil
	}
	at, err := l.node.openCaller(l) // allocates memory, which takes a moment
	if err != nil {
		return err
	}
	if !l.begun.carry(&at) { // the host is gone
		_ = at.Bus.Close(context.Background()) // it has never been used
		at.Arena.Release()
	}
	return nil
}

// openCaller opens the bus that carries what this process submits.
func (n *Node) openCaller(l *link) (bus.OpenedPart, error) {
	return l.openPart(bus.Part{
		Arriving: portsOf(l.welcome.Results, nil), Leaving: portsOf(l.welcome.Inputs, l.welcome.Tensors), Requests: callerRequests,
	}, max(callerRequests, n.opts.MaxRequests))
}

// Put implements bus.Carrier: it sends an input to the host.
func (up *remoteRequest) Put(d *bus.Delivery, edge int) error {
	return up.out.put(d, edge, func() { _ = d.Finish(nil) }) // held here alone
}

// Returns implements bus.Carrier.
func (up *remoteRequest) Returns(edge int, seq uint64) bool { return up.out.relays(edge, seq) }

// InputEnded implements bus.Home. The host sees the end by the last input, if that says so.
func (up *remoteRequest) InputEnded(bare bool) {
	if left := up.inputs.Add(-1); left == 0 && bare {
		faultpoint.Hit("node-before-close-send")
		up.out.endAll()
		up.link.Queue(&wire.CloseSend{Source: up.source})
	}
}

// Submit sends a request with one input: see Bus.Submit. It waits for a place among
// JoinOptions.MaxRequests, and not for the host: a request that the host refuses, or that
// waits there for its place until the deadline, ends with that.
func (n *Node) Submit(ctx context.Context, v any, opts ...bus.SubmitOption) (*bus.Request, error) {
	r, err := n.submit(ctx, 0, opts)
	if err != nil {
		return nil, err
	}
	return sendOnly(ctx, r, v)
}

// TrySubmit is Submit for callers that would rather shed load than wait: when
// the host, or this node, has no place for the request, it returns
// ErrOverloaded.
func (n *Node) TrySubmit(ctx context.Context, v any, opts ...bus.SubmitOption) (*bus.Request, error) {
	r, err := n.submit(ctx, wire.SubmitTry|wire.SubmitTell, opts)
	if err != nil {
		return nil, err
	}
	return sendOnly(ctx, r, v)
}

// sendOnly sends the one input of a request.
func sendOnly(ctx context.Context, r *bus.Request, v any) (*bus.Request, error) {
	if err := r.Send(ctx, v, bus.Last()); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Stream starts a request whose inputs follow: see Bus.Stream. It waits until the host has
// begun it.
func (n *Node) Stream(ctx context.Context, opts ...bus.SubmitOption) (*bus.Request, error) {
	return n.submit(ctx, wire.SubmitTell, opts)
}

func (n *Node) submit(ctx context.Context, flags uint8, opts []bus.SubmitOption) (*bus.Request, error) {
	r, err := n.open(ctx, flags, opts)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil && !errors.Is(err, bus.ErrDeadline) {
		err = fmt.Errorf("%w: %w", bus.ErrDeadline, err)
	}
	if err != nil {
		return nil, fmt.Errorf("bus: submit: %w", err)
	}
	return r, nil
}

func (n *Node) open(ctx context.Context, flags uint8, opts []bus.SubmitOption) (*bus.Request, error) {
	o, err := bus.RequestOptionsOf(ctx, opts)
	if err != nil {
		return nil, err
	}
	waiting, waited := untilDeadline(ctx, o.Deadline)
	defer waited()
	l, err := n.current(waiting)
	if err != nil {
		return nil, err
	}
	if err := l.callers(); err != nil {
		return nil, err
	}
	caller := l.begun.carrier()
	if caller == nil {
		return nil, l.parting.lost()
	}
	o.Try = flags&wire.SubmitTry != 0
	if err := l.acquirePermit(waiting, caller.Bus.Backend(), o); err != nil {
		return nil, err
	}
	up, tell := &remoteRequest{link: l}, flags&wire.SubmitTell != 0
	if tell {
		up.answers = make(chan error, 1)
	}
	if err := up.begin(ctx, caller, flags, o); err != nil {
		return nil, err
	}
	if tell {
		if err := up.await(waiting); err != nil {
			up.req.Close()
			return nil, err
		}
	}
	return up.req, nil
}

// acquirePermit takes a place for a request of this process. The wait for one ends with the link, too.
func (l *link) acquirePermit(ctx context.Context, floor bus.Backend, o bus.RequestOptions) error {
	o.Now = true
	err := floor.AcquirePermit(ctx, o)
	if !errors.Is(err, bus.ErrCanceled) {
		return err
	}
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	go func() { // until takePlace returns
		select {
		case <-l.done:
			lost(l.parting.lost())
		case <-ctx.Done():
		}
	}()
	o.Now = false
	return floor.AcquirePermit(ctx, o)
}

// untilDeadline is a context that ends at a request's deadline too, if there is one
// and it comes first.
func untilDeadline(ctx context.Context, at time.Time) (context.Context, context.CancelFunc) {
	if own, limited := ctx.Deadline(); at.IsZero() || limited && !at.Before(own) {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, at, bus.ErrDeadline)
}

// await waits until the host has begun the request, or has refused it.
func (up *remoteRequest) await(ctx context.Context) error {
	select {
	case err := <-up.answers:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-up.req.Done():
	}
	select {
	case err := <-up.answers: // the reason
		return err
	default:
	}
	if at, limited := ctx.Deadline(); limited && !time.Now().Before(at) { // or is about to say so
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err := up.req.Err(); err != nil {
		return err
	}
	return bus.ErrEnded
}

// begin makes a request and tells the host of it, with the first input or within a
// millisecond. The host answers only if it is asked whether it has a place.
func (up *remoteRequest) begin(ctx context.Context, caller *bus.OpenedPart, flags uint8, o bus.RequestOptions) error {
	l := up.link
	l.calling.Lock() // the host sees numbers that rise
	defer l.calling.Unlock()
	l.lastSource++
	up.source = wire.OwnSource | l.lastSource
	up.out.begin(l, up.source, len(caller.Inputs))
	up.inputs.Store(int32(len(caller.Inputs)))
	o.ID, o.Owner = hostnode.RequestID(l.welcome.Node, up.source), up
	req, err := caller.Bus.Backend().Admit(ctx, o)
	if err != nil {
		return err
	}
	m := &wire.Submit{Source: up.source, Flags: flags, Trace: hostnode.Trace(o.Trace)}
	begin := func() {
		up.req = req
		up.in.begin(req, caller.Results, true)
	}
	known, err := l.begun.request(up, begin, func() (err error) {
		m.TimeLeft = hostnode.TimeLeft(o.Deadline) // at the end of all waits
		if flags&wire.SubmitTell != 0 {
			err = l.send(m)
		} else {
			err = l.later(m)
		}
		faultpoint.Hit("node-submitted")
		return err
	})
	if !known {
		err = l.parting.lost()
	}
	if err != nil {
		req.Control().End(bus.Failed, err)
		req.Close()
		return err
	}
	if req.Outcome() != bus.Running { // its context ended meanwhile, when it was not known yet
		up.Ended()
	}
	return nil
}

// answer says whether the host has a place for the request.
func (up *remoteRequest) answer(err error) {
	select {
	case up.answers <- err: // nil: Submit does not ask
	default:
	}
}

// Ended implements bus.Home: it tells the host that the request is over here.
func (up *remoteRequest) Ended() {
	l := up.link
	if known := l.begun.requestEnded(up); !known {
		return
	}
	up.in.drop()
	if up.req.Outcome() == bus.Completed {
		return
	}
	m := &wire.AbortRequest{Source: up.source, Text: hostnode.TextBehind(bus.ErrAborted, up.req.Err().Error())}
	if up.req.Outcome() == bus.PastDeadline {
		m.Code = wire.CodeOver
	}
	l.Queue(m)
	l.Queue(&wire.Close{Source: up.source})
}

// over ends the request as it ended at the host.
func (up *remoteRequest) over(o bus.Outcome, err error) {
	if o != bus.Completed {
		up.in.drop()
		up.req.Control().End(o, err)
		return
	}
	up.mu.Lock()
	up.overSaid = true
	up.mu.Unlock()
	up.in.over(up.complete)
}

// complete ends a request that the host has completed, when all results are here. Inputs that
// are read still, perhaps by the caller itself as results, keep its place.
func (up *remoteRequest) complete() {
	up.req.Control().End(bus.Completed, nil)
}

// hostGone ends the request, unless the host has completed it.
func (up *remoteRequest) hostGone(err error) {
	up.mu.Lock()
	over := up.overSaid
	up.mu.Unlock()
	if !over {
		up.req.Control().End(bus.Failed, err)
	}
}

// leave ends what is open, gives everything back, and says goodbye. What this
// process emitted stays readable for others: they have it mapped.
func (l *link) leave(ctx context.Context) error {
	l.parting.close()
	tasks, requests := l.begun.leave()
	for _, t := range tasks {
		t.req.Control().End(bus.Aborted, bus.ErrClosed) // and endTask drops what it waits for
	}
	for _, u := range requests {
		u.req.Control().End(bus.Aborted, bus.ErrClosed)
		u.in.drop() // it is not known here any more: see ended
	}
	// Nothing is emitted any more, so that what others still read is safe.
	l.exchange.Stop()
	l.returnAll()
	err := errors.Join(l.closeStages(ctx), l.closeCaller(ctx), l.closeExchange(ctx))
	l.closePairs()
	l.tellFigures()
	if err == nil || ofLostGPU(err) {
		l.Queue(&wire.Bye{}) // without it the host waits until this process is dead
	}
	_ = l.sender.Close() // sends what is queued
	_ = l.conn.Close()
	return err
}

// returnAll takes all puts for returned, and those for which somebody is on the way
// here: their requests are over, and he looked before they were.
func (l *link) returnAll() {
	l.account.Close(false)
	l.account.GiveBackAll(accounts.All)
	l.account.Wait() // for those that the reader has in its hands
	l.returnPairs()
}

// returnPairs takes all that peers have for returned.
func (l *link) returnPairs() {
	for _, p := range l.peers.list() {
		p.giveUp()
	}
}

// closeStages ends the work of stages, and waits for handlers.
func (l *link) closeStages(ctx context.Context) error {
	var errs []error
	for _, st := range l.begun.served() {
		if err := st.Bus.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stage %q: %w", st.name, err))
		}
	}
	return errors.Join(errs...)
}

// closeCaller ends what this process submitted, and waits for callers that hold
// results.
func (l *link) closeCaller(ctx context.Context) error {
	caller := l.begun.carrier()
	if caller == nil {
		return nil
	}
	if err := caller.Bus.Close(ctx); err != nil {
		return fmt.Errorf("requests: %w", err)
	}
	return nil
}

// idle waits until no task is open at any of the stages, or the context ends.
func idle(ctx context.Context, stages []*nodeStage) {
	for _, st := range stages {
		if waiting.For(ctx, &st.busy) != nil {
			return
		}
	}
}

// Queue sends a message that the host has to have: a link that cannot send it ends,
// as one whose host is gone does, which the reader notices.
func (l *link) Queue(m wire.Message) {
	if err := l.sender.Queue(m); err != nil && !errors.Is(err, peer.ErrClosed) {
		l.sender.Fail(err)
	}
}

// QueueLater implements bus.Feeder.
func (l *link) QueueLater(m wire.Message) {
	if err := l.later(m); err != nil && !errors.Is(err, peer.ErrClosed) {
		l.sender.Fail(err)
	}
}

// Relays implements bus.Feeder.
func (l *link) Relays() bool { return true }

// Leaving implements bus.Feeder.
func (l *link) Leaving() bool {
	return l.parting.why() != nil
}
