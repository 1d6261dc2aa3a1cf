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

// nodeStage is a stage of the host's pipeline whose work is done here, by a
// bus of its own: its inputs are fed by the host, and its results go there.
type nodeStage struct {
	name   string
	number uint32 // as the host has it
	call   *serving
	bus.OpenedPart
	ends bool           // it does something at the end of a task
	busy sync.WaitGroup // tasks
}

// nodeTask is one request at a stage that is served here.
type nodeTask struct {
	link  *link
	stage *nodeStage
	id    uint32
	req   *bus.Request

	in  resequencer
	out routes

	mu    lockorder.Mutex[lockorder.NodeTask] // guards what follows
	known bool                                // it has all that it needs
	early bool                                // its request was over before
	asked bool                                // the host waits for the task's end
	done  bool                                // the work here is done
	told  bool                                // the host was told, or need not be
}

// serve offers the host to do the work of a stage. When the context ends before the
// host has said what the stage is like, it is served all the same: tasks may be on
// their way, and it is for the caller to leave.
func (n *Node) serve(ctx context.Context, l *link, call *serving, spec bus.StageSpec) error {
	// The board comes before the question: the answer, which is read elsewhere, uses it.
	if err := l.shareScoreboard(); err != nil {
		return fmt.Errorf("bus: serve stage %q: %w", spec.Name, err)
	}
	token, q, err := l.note(1, func(m wire.Message) error {
		s, ok := m.(*wire.Serving)
		if !ok {
			return fmt.Errorf("%w: %v instead of serving", wire.ErrProtocol, m.Kind())
		}
		err := l.addStage(call, spec, s)
		if !n.has(call) { // it has taken leave of those that were known by then
			l.leaveStages(call)
		}
		return err
	})
	if err == nil {
		m := &wire.Serve{Token: token, Stage: spec.Name}
		if !acts(spec) {
			m.Flags = wire.ServeEnds
		}
		err = l.send(m)
	}
	if err == nil {
		_, err = l.await(ctx, q)
	}
	if ctx.Err() == nil {
		l.settle(token)
	}
	if err != nil {
		return fmt.Errorf("bus: serve stage %q: %w", spec.Name, err)
	}
	return nil
}

// acts reports whether a stage does something at the end of a task.
func acts(spec bus.StageSpec) bool { return spec.End != nil || spec.Props != nil }

// refusing is a stage that fails what comes: the host takes it for served.
func refusing(name string, join bool, err error) bus.StageSpec {
	spec := bus.StageSpec{Name: name, Handle: func(*bus.Task, *bus.Delivery) error { return err }}
	if join {
		spec.Handle, spec.Join = nil, func(*bus.Task, []*bus.Delivery) error { return err }
	}
	spec, _ = spec.Checked() // it is one that works
	return spec
}

// addStage opens the bus that does a stage's work. It runs on the link's
// reader: tasks may follow at once.
func (l *link) addStage(call *serving, spec bus.StageSpec, s *wire.Serving) error {
	if int(s.Stage) != len(l.begun.served()) {
		return fmt.Errorf("%w: stage %q has the number %d, not %d", wire.ErrProtocol, spec.Name, s.Stage, len(l.begun.served()))
	}
	var wrong error
	if join := spec.Join != nil; join != s.Join {
		wrong = fmt.Errorf("%w: stage %q: the pipeline says join is %v, the handler makes it %v", bus.ErrConfig, spec.Name, s.Join, join)
		spec = refusing(spec.Name, s.Join, wrong)
	}
	var from []string
	for _, e := range s.Inputs {
		from = append(from, e.Peer)
	}
	if err := spec.CheckInputs(from); err != nil {
		wrong = err
		spec = refusing(spec.Name, s.Join, wrong)
	}
	spec.Replicas, spec.MaxInflight = 1, int(min(max(s.MaxInflight, 1), bus.MaxInflight))
	// The host says how many there are: one is over there while others read on what it
	// has emitted, which is here until that is returned.
	at, err := l.openPart(bus.Part{
		Stage: &spec, OneEach: spec.Batch != nil && s.State == wire.StateNone,
		Arriving: portsOf(s.Inputs, nil), Leaving: portsOf(s.Outputs, s.Tensors), Requests: spec.MaxInflight,
		Runs: l.board.writer(&spec, s.Stage),
	}, bus.MaxRequests)
	if err != nil {
		return err
	}
	l.begun.serve(&nodeStage{name: spec.Name, number: s.Stage, call: call, OpenedPart: at, ends: acts(spec)})
	return wrong
}

// portsOf are the ports that the host has told of.
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

// openPart opens a bus whose edges end at the boundary of this process, with the node's
// memory and settings, of whose requests so many may be alive.
func (l *link) openPart(p bus.Part, most int) (bus.OpenedPart, error) {
	n := l.node
	p.Opts = bus.Options{
		Name: n.name, Store: n.opts.Store, MaxRequests: most,
		Serializer: n.opts.Serializer, StallTimeout: -1, Logger: n.opts.Logger, GPU: n.opts.GPU,
	}
	p.LastActive, p.Lane, p.InlineBytes = l.lastActive, n.lane, int(l.welcome.InlineBytes)
	return p.Open(context.Background())
}

// open begins a task.
func (l *link) open(m *wire.Open) error {
	t, err := l.openTask(m)
	if t != nil {
		t.begun()
	}
	return err
}

// openTask makes a task known; nil: it is not to be handled here.
func (l *link) openTask(m *wire.Open) (*nodeTask, error) {
	return l.begun.task(m.Task, m.Stage, func(st *nodeStage) (*nodeTask, error) {
		t := &nodeTask{link: l, stage: st, id: m.Task}
		t.out.begin(l, m.Task, len(st.Results))
		o := bus.RequestOptions{ID: messages.RequestID(m.Request), Deadline: hostnode.DeadlineOf(m.TimeLeft), Trace: hostnode.TraceOf(m.Trace), Sink: t, Try: true}
		err := st.Bus.Backend().AcquirePermit(context.Background(), o)
		if err == nil {
			t.req, err = st.Bus.Backend().Admit(context.Background(), o)
		}
		if err != nil {
			return nil, fmt.Errorf("open task %d: %w", m.Task, err)
		}
		t.in.begin(t.req, st.Inputs, true)
		faultpoint.Hit("node-task-opened")
		st.busy.Add(1)
		return t, nil
	})
}

// begun has the end of a task noted from here on, and one that has come already, with a
// deadline that is over.
func (t *nodeTask) begun() {
	t.mu.Lock()
	t.known = true
	early := t.early
	t.mu.Unlock()
	if early {
		t.Ended()
	}
}

// end ends the inputs, when all is there that is on its way.
func (t *nodeTask) end() { t.in.over(t.ask) }

// ask notes that the host waits for the task's end.
func (t *nodeTask) ask() {
	t.mu.Lock()
	t.asked = true
	t.mu.Unlock()
	t.tell()
}

// Ended implements bus.Sink. An end that the host sees as well as this process is not asked
// for: of a stage that does nothing at the end, whose inputs have all come through the host.
func (t *nodeTask) Ended() {
	t.mu.Lock()
	known := t.known
	t.early = !known
	t.mu.Unlock()
	if !known {
		return // begun comes back to it
	}
	seen := !t.stage.ends && t.in.throughHost()
	t.mu.Lock()
	t.done = true
	t.asked = t.asked || seen || t.req.Outcome() != bus.Completed
	t.mu.Unlock()
	t.tell()
}

// tell tells the host how the task ended, once it has and the host waits for it.
func (t *nodeTask) tell() {
	t.mu.Lock()
	due := t.done && t.asked && !t.told
	t.told = t.told || due
	t.mu.Unlock()
	if due {
		t.link.endTask(t, t.req.Err())
		t.stage.busy.Done()
	}
}

// over stops the task: its request is over.
func (t *nodeTask) over(o bus.Outcome, err error) {
	if o == bus.Completed || o == bus.Running {
		o, err = bus.Aborted, bus.ErrAborted // no process waits for it any more
	}
	t.req.Control().End(o, err)
	t.ask() // one that has completed waits for the end, which does not come
}

// Put implements bus.Carrier: it sends what the stage emits to the host, before the stage can
// say that it has finished the input. Without a host the end of the task follows.
func (t *nodeTask) Put(d *bus.Delivery, edge int) error {
	err := t.out.put(d, edge, func() { _ = d.Finish(nil) })
	if errors.Is(err, bus.ErrHostGone) {
		return bus.ErrNotTaken
	}
	return err
}

// Returns implements bus.Carrier.
func (t *nodeTask) Returns(edge int, seq uint64) bool { return t.out.relays(edge, seq) }

// Describe implements bus.Sink.
func (t *nodeTask) Describe() string { return "the host" }

// endTask tells the host how a task ended, unless it knows.
func (l *link) endTask(t *nodeTask, err error) {
	t.in.drop()
	if err == nil {
		t.out.endAll()
	}
	if known := l.begun.taskEnded(t); !known {
		return
	}
	m := &wire.Ended{Task: t.id}
	if err != nil {
		m.Code, m.Text = wire.CodeInternal, err.Error()
		if t.req.Outcome() == bus.PastDeadline { // by this clock: the host's decides
			m.Code = wire.CodeOver
		}
		var at *bus.StageError
		if errors.As(err, &at) {
			m.Text = at.TextWithoutLocation(err) // the host knows the stage
			m.Edge, m.Key, m.Seq = at.Edge, at.Key, at.Seq
		}
	}
	faultpoint.Hit("node-before-ended")
	l.Queue(m)
	faultpoint.Hit("node-ended")
}
