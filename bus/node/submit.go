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

	openInputs atomic.Int32 // streams that have not ended
	started    chan error   // whether the host has a place; nil: Submit does not ask

	mu              lockorder.Mutex[lockorder.Upstream] // guards what follows
	completedByHost bool                                // the host has completed the request
}

// callerRequests is how many requests at a time, with full windows, the memory
// for a node's inputs is made for. Beyond that payloads get segments of their
// own.
const callerRequests = 4

// ensureCaller opens the bus that carries what this process submits, unless it is open. Those who
// come meanwhile wait for it: it is work for each place that a request may have.
func (l *link) ensureCaller() error {
	if l.work.callerPart() != nil {
		return nil
	}
	l.callerMu.Lock()
	defer l.callerMu.Unlock()
	if l.work.callerPart() != nil {
		return nil
	}
	at, err := l.node.openCaller(l) // allocates memory, which takes a moment
	if err != nil {
		return err
	}
	if !l.work.setCaller(&at) { // the host is gone
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
func (rr *remoteRequest) Put(d *bus.Delivery, edge int) error {
	return rr.out.put(d, edge, func() { _ = d.Finish(nil) }) // held here alone
}

// Returns implements bus.Carrier.
func (rr *remoteRequest) Returns(edge int, seq uint64) bool { return rr.out.relays(edge, seq) }

// InputEnded implements bus.Home. The host sees the end by the last input, if that says so.
func (rr *remoteRequest) InputEnded(bare bool) {
	if left := rr.openInputs.Add(-1); left == 0 && bare {
		faultpoint.Hit("node-before-close-send")
		rr.out.endStreams()
		rr.link.Queue(&wire.CloseSend{Source: rr.source})
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
	return sendOneInput(ctx, r, v)
}

// TrySubmit is Submit for callers that would rather shed load than wait: when
// the host, or this node, has no place for the request, it returns
// ErrOverloaded.
func (n *Node) TrySubmit(ctx context.Context, v any, opts ...bus.SubmitOption) (*bus.Request, error) {
	r, err := n.submit(ctx, wire.SubmitTry|wire.SubmitTell, opts)
	if err != nil {
		return nil, err
	}
	return sendOneInput(ctx, r, v)
}

// sendOneInput sends the one input of a request.
func sendOneInput(ctx context.Context, r *bus.Request, v any) (*bus.Request, error) {
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
	r, err := n.openRequest(ctx, flags, opts)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil && !errors.Is(err, bus.ErrDeadline) {
		err = fmt.Errorf("%w: %w", bus.ErrDeadline, err)
	}
	if err != nil {
		return nil, fmt.Errorf("bus: submit: %w", err)
	}
	return r, nil
}

func (n *Node) openRequest(ctx context.Context, flags uint8, opts []bus.SubmitOption) (*bus.Request, error) {
	o, err := bus.RequestOptionsOf(ctx, opts)
	if err != nil {
		return nil, err
	}
	waiting, waited := untilDeadline(ctx, o.Deadline)
	defer waited()
	l, err := n.awaitLink(waiting)
	if err != nil {
		return nil, err
	}
	if err := l.ensureCaller(); err != nil {
		return nil, err
	}
	caller := l.work.callerPart()
	if caller == nil {
		return nil, l.state.hostErr()
	}
	o.Try = flags&wire.SubmitTry != 0
	if err := l.acquirePermit(waiting, caller.Bus.Backend(), o); err != nil {
		return nil, err
	}
	rr, tell := &remoteRequest{link: l}, flags&wire.SubmitTell != 0
	if tell {
		rr.started = make(chan error, 1)
	}
	if err := rr.start(ctx, caller, flags, o); err != nil {
		return nil, err
	}
	if tell {
		if err := rr.awaitStart(waiting); err != nil {
			rr.req.Close()
			return nil, err
		}
	}
	return rr.req, nil
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
			lost(l.state.hostErr())
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

// awaitStart waits until the host has begun the request, or has refused it.
func (rr *remoteRequest) awaitStart(ctx context.Context) error {
	select {
	case err := <-rr.started:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-rr.req.Done():
	}
	select {
	case err := <-rr.started: // the reason
		return err
	default:
	}
	if at, limited := ctx.Deadline(); limited && !time.Now().Before(at) { // or is about to say so
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err := rr.req.Err(); err != nil {
		return err
	}
	return bus.ErrEnded
}

// start makes a request and tells the host of it, with the first input or within a
// millisecond. The host answers only if it is asked whether it has a place.
func (rr *remoteRequest) start(ctx context.Context, caller *bus.OpenedPart, flags uint8, o bus.RequestOptions) error {
	l := rr.link
	l.callerMu.Lock() // the host sees numbers that rise
	defer l.callerMu.Unlock()
	l.lastSource++
	rr.source = wire.OwnSource | l.lastSource
	rr.out.init(l, rr.source, len(caller.Inputs))
	rr.openInputs.Store(int32(len(caller.Inputs)))
	o.ID, o.Owner = hostnode.RequestID(l.welcome.Node, rr.source), rr
	req, err := caller.Bus.Backend().Admit(ctx, o)
	if err != nil {
		return err
	}
	m := &wire.Submit{Source: rr.source, Flags: flags, Trace: hostnode.Trace(o.Trace)}
	begin := func() {
		rr.req = req
		rr.in.init(req, caller.Results, true)
	}
	known, err := l.work.addRequest(rr, begin, func() (err error) {
		m.TimeLeft = hostnode.TimeLeft(o.Deadline) // at the end of all waits
		if flags&wire.SubmitTell != 0 {
			err = l.send(m)
		} else {
			err = l.sendLater(m)
		}
		faultpoint.Hit("node-submitted")
		return err
	})
	if !known {
		err = l.state.hostErr()
	}
	if err != nil {
		req.Control().End(bus.Failed, err)
		req.Close()
		return err
	}
	if req.Outcome() != bus.Running { // its context ended meanwhile, when it was not known yet
		rr.Ended()
	}
	return nil
}

// answer says whether the host has a place for the request.
func (rr *remoteRequest) answer(err error) {
	select {
	case rr.started <- err: // nil: Submit does not ask
	default:
	}
}

// Ended implements bus.Home: it tells the host that the request is over here.
func (rr *remoteRequest) Ended() {
	l := rr.link
	if known := l.work.forgetRequest(rr); !known {
		return
	}
	rr.in.drop()
	if rr.req.Outcome() == bus.Completed {
		return
	}
	m := &wire.AbortRequest{Source: rr.source, Text: hostnode.TextBehind(bus.ErrAborted, rr.req.Err().Error())}
	if rr.req.Outcome() == bus.PastDeadline {
		m.Code = wire.CodeOver
	}
	l.Queue(m)
	l.Queue(&wire.Close{Source: rr.source})
}

// hostEnded ends the request as it ended at the host.
func (rr *remoteRequest) hostEnded(o bus.Outcome, err error) {
	if o != bus.Completed {
		rr.in.drop()
		rr.req.Control().End(o, err)
		return
	}
	rr.mu.Lock()
	rr.completedByHost = true
	rr.mu.Unlock()
	rr.in.whenComplete(rr.complete)
}

// complete ends a request that the host has completed, when all results are here. Inputs that
// are read still, perhaps by the caller itself as results, keep its place.
func (rr *remoteRequest) complete() {
	rr.req.Control().End(bus.Completed, nil)
}

// hostGone ends the request, unless the host has completed it.
func (rr *remoteRequest) hostGone(err error) {
	rr.mu.Lock()
	over := rr.completedByHost
	rr.mu.Unlock()
	if !over {
		rr.req.Control().End(bus.Failed, err)
	}
}

// close ends what is open, gives everything back, and says goodbye. What this
// process emitted stays readable for others: they have it mapped.
func (l *link) close(ctx context.Context) error {
	l.state.close()
	tasks, requests := l.work.close()
	for _, t := range tasks {
		t.req.Control().End(bus.Aborted, bus.ErrClosed) // and endTask drops what it waits for
	}
	for _, rr := range requests {
		rr.req.Control().End(bus.Aborted, bus.ErrClosed)
		rr.in.drop() // it is not known here any more: see ended
	}
	// Nothing is emitted any more, so that what others still read is safe.
	l.exchange.Stop()
	l.giveBackAll()
	err := errors.Join(l.closeStages(ctx), l.closeCaller(ctx), l.closeExchange(ctx))
	l.closePeers()
	l.sendFigures()
	if err == nil || onlyLostGPU(err) {
		l.Queue(&wire.Bye{}) // without it the host waits until this process is dead
	}
	_ = l.sender.Close() // sends what is queued
	_ = l.conn.Close()
	return err
}

// giveBackAll takes all puts for returned, and those for which somebody is on the way
// here: their requests are over, and he looked before they were.
func (l *link) giveBackAll() {
	l.account.Close(false)
	l.account.GiveBackAll(accounts.All)
	l.account.Wait() // for those that the reader has in its hands
	l.giveBackPeers()
}

// giveBackPeers takes all that peers have for returned.
func (l *link) giveBackPeers() {
	for _, p := range l.peers.list() {
		p.giveBackAll()
	}
}

// closeStages ends the work of stages, and waits for handlers.
func (l *link) closeStages(ctx context.Context) error {
	var errs []error
	for _, st := range l.work.servedStages() {
		if err := st.Bus.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stage %q: %w", st.name, err))
		}
	}
	return errors.Join(errs...)
}

// closeCaller ends what this process submitted, and waits for callers that hold
// results.
func (l *link) closeCaller(ctx context.Context) error {
	caller := l.work.callerPart()
	if caller == nil {
		return nil
	}
	if err := caller.Bus.Close(ctx); err != nil {
		return fmt.Errorf("requests: %w", err)
	}
	return nil
}

// awaitIdle waits until no task is open at any of the stages, or the context ends.
func awaitIdle(ctx context.Context, stages []*nodeStage) {
	for _, st := range stages {
		if waiting.For(ctx, &st.openTasks) != nil {
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

// Rest implements bus.Feeder.
func (l *link) Rest(m wire.Message) {
	if err := l.sendLater(m); err != nil && !errors.Is(err, peer.ErrClosed) {
		l.sender.Fail(err)
	}
}

// Relays implements bus.Feeder.
func (l *link) Relays() bool { return true }

// Leaving implements bus.Feeder.
func (l *link) Leaving() bool {
	return l.state.err() != nil
}
