package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
)

// nodeStage is a stage of the host's pipeline that this process serves. Its OpenedPart is a bus
// whose inputs come from the host or from peers, and whose results go there.
type nodeStage struct {
	name   string
	number uint32 // in the messages of the host
	call   *serveCall
	bus.OpenedPart
	actsAtEnd bool           // see actsAtEnd
	openTasks sync.WaitGroup // counts the open tasks
}

// nodeTask is one request at a stage that this process serves.
type nodeTask struct {
	link  *link
	stage *nodeStage
	id    uint32
	req   *bus.Request

	in  resequencer
	out routes

	mu         lockorder.Mutex[lockorder.NodeTask] // guards the fields below
	ready      bool                                // newTask has returned
	endedEarly bool                                // the request ended before the task was ready
	endAsked   bool                                // the host waits for the message Ended
	workDone   bool                                // the request of this process's bus has ended
	endSent    bool                                // sendTaskEnd was called
}

// serve asks the host for the stage, and returns when the host has answered. When the context ends
// first, the answer still adds the stage, since the host may have opened tasks by then; the caller
// leaves the stage.
func (n *Node) serve(ctx context.Context, l *link, call *serveCall, spec bus.StageSpec) error {
	// The scoreboard precedes the question: addStage, on the reader's goroutine, uses it.
	if err := l.shareScoreboard(); err != nil {
		return fmt.Errorf("bus: serve stage %q: %w", spec.Name, err)
	}
	token, q, err := l.newQuestion(1, func(m wire.Message) error {
		s, ok := m.(*wire.Serving)
		if !ok {
			return fmt.Errorf("%w: %v instead of serving", wire.ErrProtocol, m.Kind())
		}
		err := l.addStage(call, spec, s)
		if !n.isServing(call) { // leaveCall has left only the stages that were known
			l.leaveStages(call)
		}
		return err
	})
	if err == nil {
		m := &wire.Serve{Token: token, Stage: spec.Name}
		if !actsAtEnd(spec) {
			m.Flags = wire.ServeEnds
		}
		err = l.send(m)
	}
	if err == nil {
		_, err = l.await(ctx, q)
	}
	if ctx.Err() == nil {
		l.removeQuestion(token)
	}
	if err != nil {
		return fmt.Errorf("bus: serve stage %q: %w", spec.Name, err)
	}
	return nil
}

// actsAtEnd reports whether a stage has a handler for the end of a task.
func actsAtEnd(spec bus.StageSpec) bool { return spec.End != nil || spec.Props != nil }

// refusingStage is a stage whose handler fails each delivery. It replaces a stage that does not fit
// the pipeline, since the host already counts the stage as served.
func refusingStage(name string, join bool, err error) bus.StageSpec {
	spec := bus.StageSpec{Name: name, Handle: func(*bus.Task, *bus.Delivery) error { return err }}
	if join {
		spec.Handle, spec.Join = nil, func(*bus.Task, []*bus.Delivery) error { return err }
	}
	spec, _ = spec.Checked() // cannot fail
	return spec
}

// addStage opens the bus of a stage. It runs on the link's reader, since the host's next message
// may open a task of the stage.
func (l *link) addStage(call *serveCall, spec bus.StageSpec, s *wire.Serving) error {
	if int(s.Stage) != len(l.work.servedStages()) {
		return fmt.Errorf("%w: stage %q has the number %d, not %d", wire.ErrProtocol, spec.Name, s.Stage, len(l.work.servedStages()))
	}
	var wrong error
	if join := spec.Join != nil; join != s.Join {
		wrong = fmt.Errorf("%w: stage %q: the pipeline says join is %v, the handler makes it %v", bus.ErrConfig, spec.Name, s.Join, join)
		spec = refusingStage(spec.Name, s.Join, wrong)
	}
	var from []string
	for _, e := range s.Inputs {
		from = append(from, e.Peer)
	}
	if err := spec.CheckInputs(from); err != nil {
		wrong = err
		spec = refusingStage(spec.Name, s.Join, wrong)
	}
	spec.Replicas, spec.MaxInflight = 1, int(min(max(s.MaxInflight, 1), bus.MaxInflight))
	// The host bounds the tasks. A task that has ended at the host still counts here while other
	// processes read its results.
	at, err := l.openPart(bus.Part{
		Stage: &spec, OneEach: spec.Batch != nil && s.State == wire.StateNone,
		Arriving: portsOf(s.Inputs, nil), Leaving: portsOf(s.Outputs, s.Tensors), Requests: spec.MaxInflight,
		Runs: l.board.writer(&spec, s.Stage),
	}, bus.MaxRequests)
	if err != nil {
		return err
	}
	l.work.addStage(&nodeStage{name: spec.Name, number: s.Stage, call: call, OpenedPart: at, actsAtEnd: actsAtEnd(spec)})
	return wrong
}

// portsOf converts the edges of a message of the host to ports.
func portsOf(edges []wire.Edge, tensors []wire.Tensors) []bus.Port {
	all := make([]bus.Port, len(edges))
	for i, e := range edges {
		p := &all[i]
		p.Name, p.Peer, p.Window, p.WindowBytes, p.Policy = e.Name, e.Peer, int(e.Window), int64(min(e.WindowBytes, math.MaxInt64)), e.Policy
		if e.Window == 0 {
			p.Window = bus.Unbounded
		}
		if i < len(tensors) {
			p.Tensors, p.TensorMinBytes = tensors[i].Transport, int64(min(tensors[i].MinBytes, math.MaxInt64))
		}
	}
	return all
}

// openPart opens a bus whose edges end at the boundary of this process, with the node's memory and
// settings, for at most so many live requests.
func (l *link) openPart(p bus.Part, most int) (bus.OpenedPart, error) {
	n := l.node
	p.Opts = bus.Options{
		Name: n.name, Store: n.opts.Store, MaxRequests: most,
		Serializer: n.opts.Serializer, StallTimeout: -1, Logger: n.opts.Logger, GPU: n.opts.GPU,
	}
	p.LastActive, p.Lane, p.InlineBytes = l.lastActive, n.lane, int(l.welcome.InlineBytes)
	return p.Open(context.Background())
}

// startTask handles the message Open.
func (l *link) startTask(m *wire.Open) error {
	t, err := l.newTask(m)
	if t != nil {
		t.markReady()
	}
	return err
}

// newTask creates a task and registers it; nil: the link is closing, and the host redelivers the
// work.
func (l *link) newTask(m *wire.Open) (*nodeTask, error) {
	return l.work.addTask(m.Task, m.Stage, func(st *nodeStage) (*nodeTask, error) {
		t := &nodeTask{link: l, stage: st, id: m.Task}
		t.out.init(l, m.Task, len(st.Results))
		o := bus.RequestOptions{ID: messages.RequestID(m.Request), Deadline: hostnode.DeadlineOf(m.TimeLeft), Trace: hostnode.TraceOf(m.Trace), Sink: t, Try: true}
		err := st.Bus.Backend().AcquirePermit(context.Background(), o)
		if err == nil {
			t.req, err = st.Bus.Backend().Admit(context.Background(), o)
		}
		if err != nil {
			return nil, fmt.Errorf("open task %d: %w", m.Task, err)
		}
		t.in.init(t.req, st.Inputs, true)
		faultpoint.Hit("node-task-opened")
		st.openTasks.Add(1)
		return t, nil
	})
}

// markReady makes Ended effective. A request whose deadline has passed may have ended before that.
func (t *nodeTask) markReady() {
	t.mu.Lock()
	t.ready = true
	early := t.endedEarly
	t.mu.Unlock()
	if early {
		t.Ended()
	}
}

// endInputs ends the inputs and asks for the end of the task, after the direct deliveries that are
// still on their way.
func (t *nodeTask) endInputs() { t.in.whenComplete(t.askEnd) }

// askEnd records that the host waits for the end of the task.
func (t *nodeTask) askEnd() {
	t.mu.Lock()
	t.endAsked = true
	t.mu.Unlock()
	t.sendEnd()
}

// Ended implements bus.Sink. If the stage has no handler for the end and all inputs came through
// the host, the host infers the end of the task from the finished deliveries, and does not ask for
// it.
func (t *nodeTask) Ended() {
	t.mu.Lock()
	known := t.ready
	t.endedEarly = !known
	t.mu.Unlock()
	if !known {
		return // markReady calls Ended again
	}
	seen := !t.stage.actsAtEnd && t.in.throughHost()
	t.mu.Lock()
	t.workDone = true
	t.endAsked = t.endAsked || seen || t.req.Outcome() != bus.Completed
	t.mu.Unlock()
	t.sendEnd()
}

// sendEnd sends the end of the task once the work is done and the host waits for the end.
func (t *nodeTask) sendEnd() {
	t.mu.Lock()
	due := t.workDone && t.endAsked && !t.endSent
	t.endSent = t.endSent || due
	t.mu.Unlock()
	if due {
		t.link.sendTaskEnd(t, t.req.Err())
		t.stage.openTasks.Done()
	}
}

// requestOver ends the task after its request has ended at the host.
func (t *nodeTask) requestOver(o bus.Outcome, err error) {
	if o == bus.Completed || o == bus.Running {
		o, err = bus.Aborted, bus.ErrAborted // no process reads its results
	}
	t.req.Control().End(o, err)
	t.askEnd() // a completed task waits for a message End, which the host does not send after Over
}

// Put implements bus.RemoteSink: it sends an emission to the host or to a peer before the stage can
// send the Finish of the input. Without a host it returns ErrNotTaken: the task is about to be
// aborted.
func (t *nodeTask) Put(d *bus.Delivery, edge int) error {
	err := t.out.put(d, edge, func() { _ = d.Finish(nil) })
	if errors.Is(err, bus.ErrHostGone) {
		return bus.ErrNotTaken
	}
	return err
}

// Returns implements bus.RemoteSink.
func (t *nodeTask) Returns(edge int, seq uint64) bool { return t.out.relays(edge, seq) }

// Describe implements bus.Sink.
func (t *nodeTask) Describe() string { return "the host" }

// sendTaskEnd sends the outcome of a task to the host, unless the host has ended the task.
func (l *link) sendTaskEnd(t *nodeTask, err error) {
	t.in.drop()
	if err == nil {
		t.out.endStreams()
	}
	if known := l.work.forgetTask(t); !known {
		return
	}
	m := &wire.Ended{Task: t.id}
	if err != nil {
		m.Code, m.Text = wire.CodeInternal, err.Error()
		if t.req.Outcome() == bus.PastDeadline { // by the clock of this process; the host's clock decides
			m.Code = wire.CodeOver
		}
		var at *bus.StageError
		if errors.As(err, &at) {
			m.Text = at.TextWithoutLocation(err) // the host adds the stage
			m.Edge, m.Key, m.Seq = at.Edge, at.Key, at.Seq
		}
	}
	faultpoint.Hit("node-before-ended")
	l.Queue(m)
	faultpoint.Hit("node-ended")
}
