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
// so the counters of a busy bus may differ by some deliveries.
type Stats struct {
	Live      int   `json:"live"` // requests that are running or have results that are not finished
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"`
	Aborted   int64 `json:"aborted"`
	Deadline  int64 `json:"deadline"`

	JoinBytes int64          `json:"join_bytes"` // of inputs that wait in joins
	Stages    []StageStats   `json:"stages"`     // in topological order
	Edges     []EdgeStats    `json:"edges"`      // in the order of the pipeline, then further inputs and results
	Store     shmstore.Stats `json:"store"`
	Exchange  ExchangeStats  `json:"exchange"`
	// Tensors are the figures of tensors on GPUs that this process sends and
	// receives. ProcessTensors are the sums of all processes that have joined the
	// bus, as reported each second and when they leave.
	Tensors        lane.Stats `json:"tensors"`
	ProcessTensors lane.Stats `json:"process_tensors"`
}

// StageStats are the figures of one stage.
type StageStats struct {
	Name      string `json:"name"`
	Remote    bool   `json:"remote"`  // other processes serve it
	Serving   int    `json:"serving"` // processes that serve it
	Slots     int    `json:"slots"`
	SlotsFree int    `json:"slots_free"` // negative while requests above the bound are open
	// AdmittedAbove counts requests that were admitted above the bound, to break a cycle of requests
	// that wait for each other's slots.
	AdmittedAbove int64 `json:"admitted_above"`
	Queued        int   `json:"queued"` // deliveries for which no handler has begun
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
	Inline      int64  `json:"inline"`     // deliveries with the payload inside
	// Deliveries on direct paths between processes. They are counted, here and
	// above, when their stream has ended.
	Direct     int64 `json:"direct"`
	Copies     int64 `json:"copies"`  // payloads that the bus copied
	Spilled    int64 `json:"spilled"` // payloads on the heap, because the store had no space for them in one piece
	Dropped    int64 `json:"dropped"`
	Duplicates int64 `json:"duplicates"` // removed after a retry
	// Connector is the health of the edge's connector; nil: it has none. Edges
	// that share a connector have the same figures.
	Connector *connector.Health `json:"connector,omitempty"`
	// Transfers are the times and sizes of this edge's puts and gets in the connector.
	Transfers connflow.Times `json:"transfers,omitzero"`
	// Latencies from sent to handled, or to given to the process that handles
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

// traffic returns the live requests, and by edge what forgotten requests have sent.
func (b *Bus) traffic() (live []*Request, gone []sent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.graph.edges {
		gone = append(gone, e.sent)
	}
	return b.sorted(), gone
}

// RequestStatus is the state of one live request.
type RequestStatus struct {
	ID      messages.RequestID `json:"id"`
	Outcome string             `json:"outcome"`
	Age     time.Duration      `json:"age_ns"`
	State   string             `json:"state"` // a description of its waits
	Edges   []EdgeStatus       `json:"edges"` // those with deliveries in flight or queued
}

// EdgeStatus is what one request has in flight on one edge.
type EdgeStatus struct {
	Edge       string `json:"edge"`
	Deliveries int    `json:"deliveries"`
	Bytes      int64  `json:"bytes"`
	Queued     int    `json:"queued"`
	Direct     bool   `json:"direct,omitempty"` // on a direct path between processes
}

// Statuses are the states of the live requests.
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

// sentOn is what the request has sent on an edge so far.
func (r *Request) sentOn(e *edge) sent {
	o := r.flow(e).outputs()
	o.mu.Lock()
	defer o.mu.Unlock()
	return r.flow(e).sentSoFar()
}

// sentSoFar, with the mutex of the outputs held, is what was sent on the flow so far, direct path included.
func (f *flow) sentSoFar() sent {
	so := f.sent
	if by := f.stream().DirectPath(); by != nil && !f.counted {
		n, bytes := by.Sums()
		so.add(sent{deliveries: n, direct: n, bytes: bytes})
	}
	return so
}

// freezeSent makes sent final, for the flow of a request that is being forgotten.
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
	workers := st.workers // the slice only grows
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

// queued is the number of deliveries sent to the stage for which no handler has begun.
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
