package bus

import (
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	connflow "github.com/omnibus-runtime/omnibus/connector/flow"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Stats is a snapshot of a bus. Counters only grow; they are read one by one,
// so that those of a busy bus need not add up to the last delivery.
type Stats struct {
	Live      int   `json:"live"` // requests not gone: running, or with results not yet finished
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"`
	Aborted   int64 `json:"aborted"`
	Deadline  int64 `json:"deadline"`

	JoinBytes int64          `json:"join_bytes"` // held by inputs that wait in joins
	Stages    []StageStats   `json:"stages"`     // in topological order
	Edges     []EdgeStats    `json:"edges"`      // as listed, then inputs and results
	Store     shmstore.Stats `json:"store"`
	Exchange  ExchangeStats  `json:"exchange"`
	// Tensors are the figures of tensors on GPUs that this process sends and
	// receives, ProcessTensors those of all that joined the bus since it was opened,
	// as they told lately: within a second, and when they leave.
	Tensors        lane.Stats `json:"tensors"`
	ProcessTensors lane.Stats `json:"process_tensors"`
}

// StageStats are the figures of one stage.
type StageStats struct {
	Name      string `json:"name"`
	Remote    bool   `json:"remote"`  // other processes do its work
	Serving   int    `json:"serving"` // how many of them
	Slots     int    `json:"slots"`
	SlotsFree int    `json:"slots_free"` // below 0 while more requests are open than there are slots
	// AdmittedAbove counts those that were let in so, to break a circle of requests that wait for
	// each other's slots.
	AdmittedAbove int64 `json:"admitted_above"`
	Queued        int   `json:"queued"` // deliveries that no handler has begun
	// HandleTimeouts counts handlers that ran for longer than the stage's HandleTimeout.
	HandleTimeouts int64 `json:"handle_timeouts"`
	Panics         int64 `json:"panics"`
	Restarts       int64 `json:"restarts"`
}

// EdgeStats are the figures of one edge.
type EdgeStats struct {
	From        string `json:"from"` // empty: the caller
	To          string `json:"to"`   // empty: the caller
	Window      int    `json:"window"`
	WindowBytes int64  `json:"window_bytes"`
	Deliveries  int64  `json:"deliveries"` // with a payload
	Bytes       int64  `json:"bytes"`      // of payload
	Inline      int64  `json:"inline"`     // deliveries that carried their payload
	// Deliveries that went from one process to another, past the host. These
	// are counted, here and above, when their stream has ended.
	Direct     int64 `json:"direct"`
	Copies     int64 `json:"copies"`  // payloads that the bus copied
	Spilled    int64 `json:"spilled"` // payloads on the heap, or in memory of their own, for want of room in one piece
	Dropped    int64 `json:"dropped"`
	Duplicates int64 `json:"duplicates"` // removed after a retry
	// Connector is how the connector does that carries the payloads, if one
	// does. Edges that share it have the same figures.
	Connector *connector.Health `json:"connector,omitempty"`
	// Transfers are what it took to put those of this edge, and to get them.
	Transfers connflow.Times `json:"transfers,omitzero"`
	// From sent to handled, or to handed over where another process handles
	// it; sampled.
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
}

// Stats takes a snapshot.
func (b *Bus) Stats() Stats {
	live, gone := b.traffic()
	s := Stats{
		Live:      len(live),
		Completed: b.outcomes[Completed].Load(),
		Failed:    b.outcomes[Failed].Load(),
		Aborted:   b.outcomes[Aborted].Load(),
		Deadline:  b.outcomes[PastDeadline].Load(),
		JoinBytes: b.joinBytes.Load(),
		Exchange:  exchangeStats(b.exchange),
		Tensors:   b.lane.Stats(),

		ProcessTensors: b.tensorFigures.sum(),
	}
	// After Close the store is gone, and its figures stay zero.
	_ = b.writer.Do(func(store *shmstore.Store) { s.Store = store.Stats() })
	for _, st := range b.graph.stages {
		s.Stages = append(s.Stages, b.stageStats(st))
	}
	for i, e := range b.graph.edges {
		s.Edges = append(s.Edges, e.stats())
		s.Edges[i].add(gone[i])
		for _, r := range live {
			s.Edges[i].add(r.sentOn(e))
		}
	}
	return s
}

// traffic is the requests that are alive, and what those sent on each edge that are gone.
func (b *Bus) traffic() (live []*Request, gone []sent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.graph.edges {
		gone = append(gone, e.sent)
	}
	return b.sorted(), gone
}

// RequestStatus says how one request that is alive stands.
type RequestStatus struct {
	ID      messages.RequestID `json:"id"`
	Outcome string             `json:"outcome"`
	Age     time.Duration      `json:"age_ns"`
	State   string             `json:"state"` // what it waits for
	Edges   []EdgeStatus       `json:"edges"` // those with something under way
}

// EdgeStatus is what one request has under way on one edge.
type EdgeStatus struct {
	Edge       string `json:"edge"`
	Deliveries int    `json:"deliveries"`
	Bytes      int64  `json:"bytes"`
	Queued     int    `json:"queued"`
	Direct     bool   `json:"direct,omitempty"` // from one process to another, past the host
}

// Statuses say how the requests stand that are alive.
func (b Backend) Statuses() []RequestStatus {
	all := []RequestStatus{}
	for _, r := range b.requests() {
		all = append(all, r.status())
	}
	return all
}

func (r *Request) status() RequestStatus {
	st := RequestStatus{ID: r.id, Outcome: r.Outcome().String(), Age: time.Since(r.began), State: r.describe(), Edges: []EdgeStatus{}}
	for i := range r.flows {
		f := &r.flows[i]
		deliveries, bytes := f.inFlight()
		queued := int(f.queued.Load())
		if deliveries == 0 && queued == 0 {
			continue
		}
		st.Edges = append(st.Edges, EdgeStatus{Edge: f.edge.name, Deliveries: deliveries, Bytes: bytes, Queued: queued})
	}
	return st
}

// sentOn is what the request sent on an edge so far.
func (r *Request) sentOn(e *edge) sent {
	o := r.flow(e).outputs()
	o.mu.Lock()
	defer o.mu.Unlock()
	return r.flow(e).sentSoFar()
}

// sentSoFar, with the outlet's mutex held, is what was sent on the flow so far.
func (f *flow) sentSoFar() sent {
	so := f.sent
	if by := f.stream().DirectPath(); by != nil && !f.counted {
		n, bytes := by.Sums()
		so.add(sent{deliveries: n, direct: n, bytes: bytes})
	}
	return so
}

// freezeSent counts, for good, what was sent on the flow of a request that is gone.
func (f *flow) freezeSent() {
	o := f.outputs()
	o.mu.Lock()
	defer o.mu.Unlock()
	f.sent, f.counted = f.sentSoFar(), true
}

func (s *EdgeStats) add(more sent) {
	s.Deliveries += more.deliveries
	s.Bytes += more.bytes
	s.Inline += more.inline
	s.Direct += more.direct
	s.Copies += more.copies
	s.Spilled += more.spilled
}

func (b *Bus) stageStats(st *stage) StageStats {
	a := &b.admission
	a.mu.Lock()
	s := StageStats{
		Name:          st.spec.Name,
		Slots:         st.bound(),
		SlotsFree:     st.bound() - len(st.holders),
		AdmittedAbove: st.admittedAbove,
	}
	workers := st.workers // which only grow
	a.mu.Unlock()
	for _, w := range workers {
		s.Panics += w.panics.Load()
		s.Restarts += w.actor.Restarts()
	}
	s.Queued = st.queued(b)
	if st.remote != nil {
		s.Remote, s.Serving, s.HandleTimeouts = true, st.remote.Served(), st.remote.handleTimeouts()
	}
	return s
}

// queued is how many deliveries the stage was sent that no handler has begun.
func (st *stage) queued(b *Bus) (n int) {
	for _, r := range b.requests() {
		n += int(r.tasks[st.index].sent())
	}
	return max(n-len(st.running(b)), 0)
}

func (e *edge) stats() EdgeStats {
	s := EdgeStats{
		From: e.spec.From, To: e.spec.To,
		Window: e.spec.Window, WindowBytes: e.windowBytes,
		Dropped:    e.dropped.Load(),
		Duplicates: e.duplicates.Load(),
	}
	if e.path != nil {
		health := e.path.Connector().Health()
		s.Connector, s.Transfers = &health, e.path.Times()
	}
	s.P50, s.P99 = e.latency.quantiles()
	return s
}
