package bus

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Stall is a wait that has lasted for long, and the holder of the awaited resource.
type Stall struct {
	Request messages.RequestID `json:"request"`
	Edge    string             `json:"edge"`      // of the producer that waits
	Waited  time.Duration      `json:"waited_ns"` // so far
	// Holder names the holder of the awaited resource: the requests in the
	// consumer's slots, or the consumer with its unfinished deliveries.
	Holder     string `json:"holder"`
	Deliveries int    `json:"deliveries"` // in flight on the edge
	Bytes      int64  `json:"bytes"`      // of their payloads, as charged to the byte window
	// Process is the process that waits for the exchange, for no request: Edge and
	// Request are empty then.
	Process string `json:"process,omitempty"`
	// Handler has not returned for the time Waited, while deliveries wait for its replica or although its request is
	// over.
	Handler *RunningHandler `json:"handler,omitempty"`
	// Stage has deliveries and no process serves it; Request is the one of the oldest delivery.
	Stage string `json:"stage,omitempty"`
}

// String gives one line for a log.
func (s Stall) String() string {
	waited := s.Waited.Round(time.Millisecond)
	switch {
	case s.Process != "":
		return fmt.Sprintf("%s has waited %v for %s", s.Process, waited, s.Holder)
	case s.Handler != nil:
		return fmt.Sprintf("%v; %d deliveries wait for the stage", s.Handler, s.Deliveries)
	case s.Stage != "":
		return fmt.Sprintf("stage %q: %s; %d deliveries wait for one, the oldest, of request %v, for %v", s.Stage, s.Holder, s.Deliveries, s.Request, waited)
	}
	return fmt.Sprintf("request %v has waited %v on edge %s: %s (%d deliveries, %d bytes under way)",
		s.Request, waited, s.Edge, s.Holder, s.Deliveries, s.Bytes)
}

// attrs are the attributes of a log line: the waiting request or process, where it waits, for how long, and the holder.
func (s Stall) attrs() []slog.Attr {
	waiter, where := slog.String("request", s.Request.String()), slog.String("edge", s.Edge)
	switch {
	case s.Process != "":
		waiter = slog.String("process", s.Process)
	case s.Handler != nil:
		where = slog.String("stage", s.Handler.Stage)
	case s.Stage != "":
		where = slog.String("stage", s.Stage)
	}
	return []slog.Attr{
		waiter, where, slog.Duration("waited", s.Waited.Round(time.Millisecond)), slog.String("for", s.Holder),
		slog.Int("deliveries", s.Deliveries), slog.Int64("bytes", s.Bytes),
	}
}

// Stalls lists the waits that have lasted for at least that long.
func (b *Bus) Stalls(atLeast time.Duration) []Stall {
	var all []Stall
	now := time.Now()
	for _, r := range b.requests() {
		for i := range r.flows {
			f := &r.flows[i]
			since := f.waitingSince()
			if since == 0 {
				continue
			}
			if waited := now.Sub(time.Unix(0, since)); waited >= atLeast {
				all = append(all, f.stall(waited))
			}
		}
		for _, o := range r.allOutputs() {
			if waited, dev := o.spaceWaited(now); waited > 0 && waited >= atLeast {
				all = append(all, o.stall(waited, o.describeSpace(dev)+"; "+b.describeHolders(nil)))
			}
		}
	}
	for _, st := range b.graph.stages {
		all = append(all, st.stalls(b, atLeast)...)
	}
	return all
}

// stalls lists handlers of the stage that have not returned for at least that long, handlers of other processes that
// wait for a window, and deliveries that no process serves.
func (st *stage) stalls(b *Bus, atLeast time.Duration) (all []Stall) {
	for _, h := range st.running(b) {
		if h.For < atLeast {
			continue
		}
		queued := st.queued(b)
		switch {
		case h.Waits != "":
			if r := b.request(h.Request); r != nil {
				f := &r.flows[slices.IndexFunc(b.graph.edges, func(e *edge) bool { return e.name == h.Waits })]
				all = append(all, f.stall(h.For))
			}
		case h.Over || queued > 0:
			all = append(all, Stall{Request: h.Request, Waited: h.For, Handler: &h, Holder: h.String(), Deliveries: queued})
		}
	}
	if st.remote != nil {
		all = append(all, st.remote.unserved(atLeast)...)
	}
	return all
}

// allOutputs are the outputs of the request's caller and of its tasks.
func (r *Request) allOutputs() []*outputs {
	all := []*outputs{&r.inputs}
	for i := range r.tasks {
		all = append(all, &r.tasks[i].outputs)
	}
	return all
}

// stall reports a producer that waits for space.
func (o *outputs) stall(waited time.Duration, holder string) Stall {
	f := o.req.flow(o.edges[0])
	deliveries, bytes := f.inFlight()
	return Stall{Request: o.req.id, Edge: f.edge.name, Waited: waited, Holder: holder, Deliveries: deliveries, Bytes: bytes}
}

// describeSpace says which memory has no space.
func (o *outputs) describeSpace(dev shmstore.Device) string {
	if dev != nil {
		return fmt.Sprintf("the GPU has no room: %v", dev)
	}
	var st shmstore.Stats
	// An error means that the bus was closed meanwhile, and nothing is held.
	_ = o.req.bus.writer.Do(func(store *shmstore.Store) { st = store.Stats() })
	return fmt.Sprintf("the store has no room: %d of %d bytes are free, at most %d in one piece; %d reservations are open",
		st.FreeBytes, st.ArenaBytes, st.LargestFree, st.Reserved)
}

// activeStreams are the streams of all requests with deliveries in flight. past are the streams on
// direct paths, with the state that their processes have reported.
func (b *Bus) activeStreams(past []Stream) (all []Stream) {
	given := make(map[*flow]Stream, len(past))
	for _, s := range past {
		given[s.flow] = s
	}
	for _, r := range b.requests() {
		for i := range r.flows {
			f := &r.flows[i]
			l, ok := given[f]
			if !ok {
				l = f.stream()
				l.Deliveries, l.Bytes = f.inFlight()
			}
			if l.Deliveries > 0 {
				all = append(all, l)
			}
		}
	}
	return all
}

// maxListed bounds the edges, or the requests, that a stall lists.
const maxListed = 8

// describeHolders names the holders of deliveries in flight: the consumers of the streams with most bytes.
// past are the streams on direct paths, with the state that their processes have reported.
func (b *Bus) describeHolders(past []Stream) string {
	streams := b.activeStreams(past)
	if len(streams) == 0 {
		return "nothing is under way"
	}
	slices.SortStableFunc(streams, func(a, b Stream) int { return cmp.Compare(b.Bytes, a.Bytes) })
	var all []string
	for _, l := range streams[:min(len(streams), maxListed)] {
		all = append(all, fmt.Sprintf("%d of request %v on edge %s%s", l.Deliveries, l.Request.id, l.Edge, l.processes()))
	}
	if more := len(streams) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("and those of %d other streams", more))
	}
	return "deliveries under way: " + strings.Join(all, ", ")
}

// processes names the other processes that have the deliveries; empty: there are none.
func (s Stream) processes() string {
	t := s.flow.consumer
	switch {
	case s.Holder != nil:
		return " (" + s.Holder.Describe() + " has them)"
	case t == nil && s.flow.req.sink != nil:
		return " (" + s.flow.req.sink.Describe() + " is to take them)"
	case t != nil && t.stage.remote != nil:
		return " (" + t.stage.remote.describe(t) + ")"
	}
	return ""
}

// inFlight counts what the consumer has or is about to get: all deliveries with credit, without
// emissions that have credit and wait for space.
func (f *flow) inFlight() (deliveries int, bytes int64) {
	u := f.used.Load()
	deliveries, bytes = int(u>>countShift), int64(u&bytesMask)
	return max(deliveries-f.outputs().spaceWaiters(), 0), bytes
}

// waitingSince is when the producer began to wait, or when the queue last
// changed, in Unix nanoseconds; 0: nothing waits.
func (f *flow) waitingSince() int64 {
	if since := f.waitBegan.Load(); since != 0 {
		return since
	}
	return f.queuedSince.Load()
}

func (f *flow) stall(waited time.Duration) Stall {
	deliveries, bytes := f.inFlight()
	return Stall{Request: f.req.id, Edge: f.edge.name, Waited: waited, Holder: f.holder(), Deliveries: deliveries, Bytes: bytes}
}

// holder names the holder of the credit or slot for which the producer waits.
func (f *flow) holder() string {
	switch {
	case f.consumer == nil:
		return f.req.submitter() + " has not finished the results it was given, or does not receive"
	case !f.consumerOpen():
		return f.consumer.stage.slotHolders(f.req)
	}
	t := f.consumer
	running := t.stage.describeHandlers(f.req)
	if n := t.held.Load(); n > 0 || t.stage.remote != nil {
		return fmt.Sprintf("stage %q keeps %s of this request%s", t.stage.spec.Name, countOf(n), t.processes()) + running
	}
	return fmt.Sprintf("stage %q has not finished what it was sent", t.stage.spec.Name) + running
}

// processes names the other processes that have deliveries of the task; empty: there are none.
func (t *Task) processes() string {
	if t.stage.remote == nil {
		return ""
	}
	return ": " + t.stage.remote.describe(t)
}

// countOf writes a number of deliveries.
func countOf(n int32) string {
	if n == 1 {
		return "1 delivery"
	}
	return fmt.Sprintf("%d deliveries", n)
}

// slotHolders names the requests that hold the stage's slots, and the processes that have their deliveries.
func (st *stage) slotHolders(r *Request) string {
	var holders []string
	more := 0
	for _, other := range r.bus.requests() {
		switch {
		case other.tasks[st.index].slot.Load() == nil:
		case len(holders) == maxListed:
			more++
		default:
			holders = append(holders, other.tasks[st.index].describeSlot())
		}
	}
	if more > 0 {
		holders = append(holders, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("all %d slots of stage %q are taken: %s", st.bound(), st.spec.Name, strings.Join(holders, "; ")) + st.describeHandlers(r)
}

// describeSlot says why the task keeps its slot.
func (t *Task) describeSlot() string {
	r := t.outputs.req
	if n := t.held.Load(); n > 0 {
		return fmt.Sprintf("request %v keeps %s there%s", r.id, countOf(n), t.processes())
	}
	if n := t.sent(); n > 0 {
		return fmt.Sprintf("request %v has %s there that no handler has finished", r.id, countOf(n))
	}
	return fmt.Sprintf("request %v has nothing to do there now, and is not over: %s submitted it", r.id, r.submitter())
}

// sent is the number of unfinished deliveries that the task was sent.
func (t *Task) sent() (n int32) {
	for _, e := range t.stage.in {
		deliveries, _ := t.outputs.req.flow(e).inFlight()
		n += int32(deliveries) //nolint:gosec // below a window
	}
	return n
}

// submitter names the caller of the request.
func (r *Request) submitter() string {
	if r.sink == nil {
		return "the caller"
	}
	return "the caller, " + r.sink.Describe() + ","
}

// stallChecks is the number of checks for stalls in each stall timeout: a report
// is late by one interval at most.
const stallChecks = 4

// minStallTick is the shortest interval between checks.
const minStallTick = 10 * time.Millisecond

// stallLog remembers reports: the stalls of one place are reported when the oldest has lasted for the timeout, and
// again whenever its age has doubled.
type stallLog struct {
	timeout  time.Duration
	reported map[reportedStall]bool // at the last check
}

// stallPlace is the edge, process or handler for which several stalls wait.
type stallPlace struct {
	edge, process, stage string
	replica              int
	handles              messages.RequestID // the request of the handler
}

// place is the place of the stall.
func (s Stall) place() stallPlace {
	p := stallPlace{edge: s.Edge, process: s.Process, stage: s.Stage}
	if h := s.Handler; h != nil {
		p.stage, p.replica, p.handles = h.Stage, h.Replica, h.Request
	}
	return p
}

// reportedStall is a place, and how often the age of its oldest stall has doubled since the timeout.
type reportedStall struct {
	stallPlace
	doubled int
}

// oldestStall is the age of the oldest stall, by place.
func oldestStall(stalls []Stall) map[stallPlace]time.Duration {
	all := make(map[stallPlace]time.Duration)
	for _, s := range stalls {
		all[s.place()] = max(all[s.place()], s.Waited)
	}
	return all
}

// due filters the present stalls: it returns those whose place has to be reported.
func (l *stallLog) due(stalls []Stall) []Stall {
	places := oldestStall(stalls)
	seen := make(map[reportedStall]bool, len(places))
	due := slices.DeleteFunc(stalls, func(s Stall) bool {
		key := reportedStall{s.place(), bits.Len64(uint64(places[s.place()] / l.timeout))} //nolint:gosec // no time is below 0
		seen[key] = true
		return l.reported[key]
	})
	l.reported = seen
	return due
}

// watchStalls calls find stallChecks times per stall timeout and reports the stalls that it
// returns, until done is closed.
func (b *Bus) watchStalls(done <-chan struct{}, find func(atLeast time.Duration) []Stall) {
	if b.opts.StallTimeout < 0 {
		return
	}
	log := stallLog{timeout: b.opts.StallTimeout}
	tick := time.NewTicker(max(log.timeout/stallChecks, minStallTick))
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			b.reportStalls(log.due(find(log.timeout)))
		}
	}
}

func (b *Bus) reportStalls(stalls []Stall) {
	if len(stalls) == 0 {
		return
	}
	if b.opts.OnStall != nil {
		b.opts.OnStall(stalls)
		return
	}
	slices.SortStableFunc(stalls, func(a, b Stall) int { return cmp.Compare(b.Waited, a.Waited) })
	more := make(map[stallPlace]int)
	for _, s := range stalls {
		more[s.place()]++
	}
	lines := 0
	for _, s := range stalls { // one line for the oldest of each place
		n, first := more[s.place()]
		if !first {
			continue
		}
		delete(more, s.place())
		if lines++; lines > maxListed {
			b.opts.Logger.Warn("stalled", slog.Int("more_places", len(more)+1))
			return
		}
		b.opts.Logger.LogAttrs(context.Background(), slog.LevelWarn, "stalled", append(s.attrs(), slog.Int("more_requests", n-1))...)
	}
}

// describe says what keeps the request alive.
func (r *Request) describe() string {
	has := r.atStages()
	if n := r.inHand.Load(); n > 0 {
		has = append(has, fmt.Sprintf("%s has %d payloads that it has neither sent nor aborted", r.submitter(), n))
	}
	if len(has) == 0 {
		has = append(has, r.submitter()+" has results that it has not received or finished")
	}
	return fmt.Sprintf("request %v (%v): %s", r.id, r.Outcome(), strings.Join(has, ", "))
}

// atStages names the stages where the request is, and those for whose slots it waits.
func (r *Request) atStages() (has []string) {
	for i := range r.tasks {
		t := &r.tasks[i]
		name := t.stage.spec.Name
		if t.stay.Load() == stayWaiting {
			has = append(has, fmt.Sprintf("it waits for a slot of stage %q", name)+t.stage.describeHandlers(r))
		}
		if t.slot.Load() == nil {
			continue
		}
		if n := t.held.Load(); n > 0 {
			has = append(has, fmt.Sprintf("stage %q keeps %s%s", name, countOf(n), t.processes())+t.stage.describeHandlers(r))
		} else {
			has = append(has, fmt.Sprintf("stage %q is at work", name)+t.stage.describeHandlers(r))
		}
	}
	return has
}
