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

// remoteRequest is a request of this process that the host executes. Its bus has no stage: inputs
// go to the host, and results come from there or from a peer.
type remoteRequest struct {
	link   *link
	source uint32
	req    *bus.Request
	in     resequencer // results
	out    routes      // of inputs

	openInputs atomic.Int32 // counts the input streams that have not ended
	started    chan error   // nil error: the host has admitted the request; nil channel: Submit does not ask

	mu              lockorder.Mutex[lockorder.RemoteRequest] // guards the field below
	completedByHost bool                                     // the host has sent Over with the outcome Completed
}

// callerRequests is how many requests with full windows the memory for a node's inputs has space
// for. Further payloads get their own segments.
const callerRequests = 4

// ensureCaller opens the bus of submitted requests once. Concurrent callers wait, since opening
// allocates for each permit.
func (l *link) ensureCaller() error {
	if l.work.callerPart() != nil {
		return nil
	}
	l.callerMu.Lock()
	defer l.callerMu.Unlock()
	if l.work.callerPart() != nil {
		return nil
	}
	at, err := l.node.openCaller(l) // slow: allocates memory
	if err != nil {
		return err
	}
	if !l.work.setCaller(&at) { // the host is gone
		_ = at.Bus.Close(context.Background()) // never used
		at.Arena.Release()
	}
	return nil
}

// openCaller opens the bus of submitted requests.
func (n *Node) openCaller(l *link) (bus.OpenedPart, error) {
	return l.openPart(bus.Part{
		Arriving: portsOf(l.welcome.Results, nil), Leaving: portsOf(l.welcome.Inputs, l.welcome.Tensors), Requests: callerRequests,
	}, max(callerRequests, n.opts.MaxRequests))
}

// Put implements bus.RemoteSink: it sends an input to the host or to a peer.
func (rr *remoteRequest) Put(d *bus.Delivery, edge int) error {
	return rr.out.put(d, edge, func() { _ = d.Finish(nil) }) // no other reader in this process
}

// Returns implements bus.RemoteSink.
func (rr *remoteRequest) Returns(edge int, seq uint64) bool { return rr.out.relays(edge, seq) }

// InputEnded implements bus.RequestOwner. The message CloseSend is sent only if the last input did
// not carry the end.
func (rr *remoteRequest) InputEnded(bare bool) {
	if left := rr.openInputs.Add(-1); left == 0 && bare {
		faultpoint.Hit("node-before-close-send")
		rr.out.endStreams()
		rr.link.Queue(&wire.CloseSend{Source: rr.source})
	}
}

// Submit sends a request with one input: see Bus.Submit. It waits for a permit among
// JoinOptions.MaxRequests, but not for the host. A request that the host refuses, or that waits at
// the host for a permit until its deadline, ends with that error.
func (n *Node) Submit(ctx context.Context, v any, opts ...bus.SubmitOption) (*bus.Request, error) {
	r, err := n.submit(ctx, 0, opts)
	if err != nil {
		return nil, err
	}
	return sendOneInput(ctx, r, v)
}

// TrySubmit is Submit for callers that shed load instead of waiting: when the host or this node has
// no permit for the request, it returns ErrOverloaded.
func (n *Node) TrySubmit(ctx context.Context, v any, opts ...bus.SubmitOption) (*bus.Request, error) {
	r, err := n.submit(ctx, wire.SubmitTry|wire.SubmitTell, opts)
	if err != nil {
		return nil, err
	}
	return sendOneInput(ctx, r, v)
}

// sendOneInput sends the only input of a request.
func sendOneInput(ctx context.Context, r *bus.Request, v any) (*bus.Request, error) {
	if err := r.Send(ctx, v, bus.Last()); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Stream starts a request whose inputs follow: see Bus.Stream. It waits until the host has admitted
// the request.
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

// acquirePermit acquires a permit for a request of this process. The wait also ends with the link.
func (l *link) acquirePermit(ctx context.Context, backend bus.Backend, o bus.RequestOptions) error {
	o.Now = true
	err := backend.AcquirePermit(ctx, o)
	if !errors.Is(err, bus.ErrCanceled) {
		return err
	}
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	go func() { // until acquirePermit returns
		select {
		case <-l.done:
			lost(l.state.hostErr())
		case <-ctx.Done():
		}
	}()
	o.Now = false
	return backend.AcquirePermit(ctx, o)
}

// untilDeadline returns a context that also ends at the request's deadline, if the deadline is set
// and earlier.
func untilDeadline(ctx context.Context, at time.Time) (context.Context, context.CancelFunc) {
	if own, limited := ctx.Deadline(); at.IsZero() || limited && !at.Before(own) {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, at, bus.ErrDeadline)
}

// awaitStart waits until the host has admitted or refused the request.
func (rr *remoteRequest) awaitStart(ctx context.Context) error {
	select {
	case err := <-rr.started:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-rr.req.Done():
	}
	select {
	case err := <-rr.started: // the reason of a refusal
		return err
	default:
	}
	if at, limited := ctx.Deadline(); limited && !time.Now().Before(at) { // the context ends at the same time
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err := rr.req.Err(); err != nil {
		return err
	}
	return bus.ErrEnded
}

// start admits a request here and sends Submit to the host, with the first input or within a
// millisecond. The host answers only if the flag SubmitTell is set.
func (rr *remoteRequest) start(ctx context.Context, caller *bus.OpenedPart, flags uint8, o bus.RequestOptions) error {
	l := rr.link
	l.callerMu.Lock() // the host requires rising source numbers
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
		m.TimeLeft = hostnode.TimeLeft(o.Deadline) // after all waits of this process
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
	if req.Outcome() != bus.Running { // its context ended before addRequest, so that Ended had no effect
		rr.Ended()
	}
	return nil
}

// answer passes on whether the host has admitted the request.
func (rr *remoteRequest) answer(err error) {
	select {
	case rr.started <- err: // nil: Submit does not ask
	default:
	}
}

// Ended implements bus.RequestOwner: it reports to the host that the request has ended here.
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

// hostEnded ends the request with the outcome at the host.
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

// complete ends a request that the host has completed, after all results have come. Inputs that are
// still read, perhaps by the caller itself as results, keep the request's permit.
func (rr *remoteRequest) complete() {
	rr.req.Control().End(bus.Completed, nil)
}

// hostGone fails the request, unless the host has completed it.
func (rr *remoteRequest) hostGone(err error) {
	rr.mu.Lock()
	over := rr.completedByHost
	rr.mu.Unlock()
	if !over {
		rr.req.Control().End(bus.Failed, err)
	}
}

// close ends all tasks and requests, releases all memory, and sends Bye. Other processes can still
// read this process's emissions, which they have mapped.
func (l *link) close(ctx context.Context) error {
	l.state.close()
	tasks, requests := l.work.close()
	for _, t := range tasks {
		t.req.Control().End(bus.Aborted, bus.ErrClosed) // sendTaskEnd drops the early deliveries
	}
	for _, rr := range requests {
		rr.req.Control().End(bus.Aborted, bus.ErrClosed)
		rr.in.drop() // work.close has removed it, so that Ended does not drop them
	}
	// Nothing is emitted from here on, so that no memory is reused that other processes still read.
	l.exchange.Stop()
	l.giveBackAll()
	err := errors.Join(l.closeStages(ctx), l.closeCaller(ctx), l.closeExchange(ctx))
	l.closePeers()
	l.sendFigures()
	if err == nil || onlyLostGPU(err) {
		l.Queue(&wire.Bye{}) // without Bye the host waits for the death of this process
	}
	_ = l.sender.Close() // sends the queued messages
	_ = l.conn.Close()
	return err
}

// giveBackAll treats all puts as returned, and has later ones refused: an emitter may have checked
// its request before the request ended.
func (l *link) giveBackAll() {
	l.account.Close(false)
	l.account.GiveBackAll(accounts.All)
	l.account.Wait() // waits for the puts that the reader is returning
	l.giveBackPeers()
}

// giveBackPeers treats all deliveries to peers as returned.
func (l *link) giveBackPeers() {
	for _, p := range l.peers.list() {
		p.giveBackAll()
	}
}

// closeStages closes the buses of the stages, which waits for their handlers.
func (l *link) closeStages(ctx context.Context) error {
	var errs []error
	for _, st := range l.work.servedStages() {
		if err := st.Bus.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stage %q: %w", st.name, err))
		}
	}
	return errors.Join(errs...)
}

// closeCaller ends the submitted requests, and waits until their results are finished.
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

// awaitIdle waits until none of the stages has an open task, or the context ends.
func awaitIdle(ctx context.Context, stages []*nodeStage) {
	for _, st := range stages {
		if waiting.For(ctx, &st.openTasks) != nil {
			return
		}
	}
}

// Queue sends a message that must not be lost. If it cannot be sent, the link fails as if the host
// were gone, which the reader notices.
func (l *link) Queue(m wire.Message) {
	if err := l.sender.Queue(m); err != nil && !errors.Is(err, peer.ErrClosed) {
		l.sender.Fail(err)
	}
}

// QueueLater implements bus.Feeder.
func (l *link) QueueLater(m wire.Message) {
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
