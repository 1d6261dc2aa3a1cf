package bus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// nodeStage is a stage of the host's pipeline whose work is done here, by a
// bus of its own: its inputs are fed by the host, and its results go there.
type nodeStage struct {
	name   string
	number uint32 // as the host has it
	call   *serving
	bus    *Bus
	busy   sync.WaitGroup // tasks

	inputs, outputs []port
}

// nodeTask is one request at a stage that is served here.
type nodeTask struct {
	link  *link
	stage *nodeStage
	id    uint32
	req   *Request

	in  arrivals
	out routes

	mu    sync.Mutex // guards what follows
	known bool       // it has all that it needs
	early bool       // its request was over before
	asked bool       // the host waits for the task's end
	done  bool       // the work here is done
	told  bool       // the host was told, or need not be
}

// serve offers the host to do the work of a stage. When the context ends before the
// host has said what the stage is like, it is served all the same: tasks may be on
// their way, and it is for the caller to leave.
func (n *Node) serve(ctx context.Context, l *link, call *serving, spec StageSpec) error {
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
		if spec.End == nil {
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

// refusing is a stage that fails what comes: the host takes it for served.
func refusing(name string, join bool, err error) StageSpec {
	spec := StageSpec{Name: name, Handle: func(*Task, *Delivery) error { return err }}
	if join {
		spec.Handle, spec.Join = nil, func(*Task, []*Delivery) error { return err }
	}
	return spec.withDefaults()
}

// addStage opens the bus that does a stage's work. It runs on the link's
// reader: tasks may follow at once.
func (l *link) addStage(call *serving, spec StageSpec, s *wire.Serving) error {
	if int(s.Stage) != len(l.begun.served()) {
		return fmt.Errorf("%w: stage %q has the number %d, not %d", wire.ErrProtocol, spec.Name, s.Stage, len(l.begun.served()))
	}
	var wrong error
	if join := spec.Join != nil; join != s.Join {
		wrong = fmt.Errorf("%w: stage %q: the pipeline says join is %v, the handler makes it %v", ErrConfig, spec.Name, s.Join, join)
		spec = refusing(spec.Name, s.Join, wrong)
	}
	spec.Replicas, spec.MaxInflight = 1, int(min(max(s.MaxInflight, 1), MaxInflight))
	st := newStage(spec)
	st.oneEach = spec.Batch != nil && s.State == wire.StateNone
	g := &graph{stages: []*stage{st}, byName: map[string]*stage{spec.Name: st}}
	for _, e := range s.Inputs {
		g.add(portEdge(e, e.Peer, spec.Name).fedByHost(), nil, st)
	}
	for i, e := range s.Outputs {
		g.add(portEdge(e, spec.Name, e.Peer).withTensors(s.Tensors, i), st, nil)
	}
	// The host says how many there are: one is over there while others read on what it
	// has emitted, which is here until that is returned.
	b, err := l.openPorts(g, spec.MaxInflight, MaxRequests)
	if err != nil {
		return err
	}
	served := &nodeStage{name: spec.Name, number: s.Stage, call: call, bus: b}
	served.inputs, served.outputs = b.ports()
	l.begun.serve(served)
	return wrong
}

// portEdge is an edge that ends at the boundary of this process, where the host is the
// caller.
func portEdge(e wire.Edge, from, to string) *edge {
	spec := Edge{From: from, To: to, Window: int(e.Window), WindowBytes: int64(e.WindowBytes), Policy: Policy(e.Policy)}
	p := &edge{name: e.Name, spec: spec, window: uint64(e.Window), windowBytes: int64(min(e.WindowBytes, bytesMask))}
	if e.Window == 0 {
		p.spec.Window, p.window = Unbounded, noWindow
	}
	if p.spec.Policy == DropOldest {
		// What is to be dropped waits at the host, beside what the consumer has. When both are full, the host
		// drops for what comes: that has to be on its way.
		p.spec.Policy, p.window = Block, noWindow
		p.windowBytes = min(3*p.windowBytes, maxWindowBytes)
	}
	return p
}

// withTensors takes from a list how tensors travel on the edge with this index.
func (e *edge) withTensors(all []wire.Tensors, i int) *edge {
	if i < len(all) {
		e.spec.Tensors, e.spec.TensorMinBytes = TensorTransport(all[i].Transport), int64(min(all[i].MinBytes, math.MaxInt64))
	}
	return e
}

// fedByHost has deliveries come on the edge that the host has numbered, and whose
// windows it keeps.
func (e *edge) fedByHost() *edge {
	e.fed, e.limit = true, min(e.window, uint64(e.windowBytes)/payloadAlign)
	e.spec.Policy, e.window, e.windowBytes = Block, noWindow, maxWindowBytes
	return e
}

// minArenaBytes is the least memory that a node's stage gets for its payloads.
const minArenaBytes = 1 << 20

// openPorts opens a bus whose edges end at the boundary of this process, with
// memory that the host can read: for the full windows of so many requests, of which
// most may be alive.
func (l *link) openPorts(g *graph, requests, most int) (*Bus, error) {
	n := l.node
	opts := Options{
		Name: n.name, Store: n.opts.Store, MaxRequests: most,
		InlineBytes: 0, Serializer: n.opts.Serializer, StallTimeout: -1, Logger: n.opts.Logger, GPU: n.opts.GPU,
		lookout: l.lookout,
	}
	if opts.Store.ArenaBytes == 0 {
		opts.Store.ArenaBytes, opts.Store.LargeObjectBytes = arenaFor(g, requests)
	}
	opts.Store.Memory = shmstore.Shared
	b, err := openGraph(context.Background(), g, opts.withDefaults(), n.lane)
	if err != nil {
		return nil, err
	}
	mem, err := b.store.ArenaSegment()
	if err != nil {
		return nil, errors.Join(err, b.Close(context.Background()))
	}
	b.shared = newLasting(mem)
	b.leastBytes = int(l.welcome.InlineBytes) + 1
	return b, nil
}

// arenaFor is as much memory as the windows of what is sent from here can
// need, and a third more for what lies between payloads; and the largest of
// them that lies there.
func arenaFor(g *graph, requests int) (arenaBytes, largeObjectBytes int64) {
	var need, largest int64
	for _, e := range g.edges {
		if e.fed {
			continue
		}
		n := int64(requests)
		if e.queues() {
			n *= 2
		}
		need += e.windowBytes * n
		largest = max(largest, e.windowBytes)
	}
	arenaBytes = max(need+need/3, minArenaBytes)
	return arenaBytes, min(largest, arenaBytes/2)
}

// dropShared gives up the mapping that was offered to the host.
func (b *Bus) dropShared() {
	if b.shared != nil {
		b.shared.release()
	}
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
		t.out.begin(l, m.Task, len(st.outputs))
		var err error
		place, ok := st.bus.places.tryTake()
		if !ok {
			return nil, fmt.Errorf("open task %d: %w", m.Task, st.bus.overloaded())
		}
		t.req, err = st.bus.admit(context.Background(), place, requestOptions{
			id: messages.RequestID(m.Request), until: m.Deadline, trace: traceOf(m.Trace), sink: t,
		})
		if err != nil {
			return nil, fmt.Errorf("open task %d: %w", m.Task, err)
		}
		t.in.begin(t.req, st.inputs, true)
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
		t.ended()
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

// ended implements sink. An end that the host sees as well as this process is not asked
// for: of a stage that does nothing at the end, whose inputs have all come through the host.
func (t *nodeTask) ended() {
	t.mu.Lock()
	known := t.known
	t.early = !known
	t.mu.Unlock()
	if !known {
		return // begun comes back to it
	}
	seen := t.stage.bus.graph.stages[0].spec.End == nil && t.in.throughHost()
	t.mu.Lock()
	t.done = true
	t.asked = t.asked || seen || t.req.Outcome() != Completed
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
func (t *nodeTask) over(o Outcome, err error) {
	if o == Completed || o == Running {
		o, err = Aborted, ErrAborted // there is nobody left to finish for
	}
	t.req.end(o, err)
	t.ask() // one that has completed waits for the end, which does not come
}

// emitted implements sink: it sends what the stage emits to the host, before the stage can
// say that it has finished the input.
func (t *nodeTask) emitted(d *Delivery) {
	t.req.passOn(d, t)
}

// put implements carrier.
func (t *nodeTask) put(d *Delivery, edge int) error {
	return t.out.put(d, edge, func() { _ = d.Finish(nil) })
}

// describe implements sink.
func (t *nodeTask) describe() string { return "the host" }

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
		var at *StageError
		if errors.As(err, &at) {
			m.Text = at.textBeside(err) // the host knows the stage
			m.Edge, m.Key, m.Seq = at.Edge, at.Key, at.Seq
		}
	}
	faultpoint.Hit("node-before-ended")
	l.queue(m)
	faultpoint.Hit("node-ended")
}
