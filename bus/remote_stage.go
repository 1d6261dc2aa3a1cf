package bus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/scoreboard"
)

// Remote describes a stage that is served by other processes, its replicas, which
// attach to the bus (see package bus/host). Without a replica deliveries wait.
//
// When a process dies, its unfinished deliveries go to another replica, or to
// the next one that attaches, as far as State, Attempts and Replay allow; else
// the request fails, with the known cause of the death. Emissions of a repeated
// handling are dropped until their number exceeds that of the emissions sent
// before: a handler must emit the same payloads in the same order.
type Remote struct {
	// Join hands over one delivery of each in-edge together.
	Join bool
	// Routing chooses the replica.
	Routing Routing
	// Batch is how many deliveries the process may handle together; 0 or 1: one.
	Batch int
	// HandleTimeout is how long a handler may run for one delivery, or for the end of a request's inputs, without
	// the time in which it waits for the bus; 0: for ever. After that its process gets no more work, and its
	// deliveries are repeated by another replica, or fail, as if the process had died. Actors ([StageSpec.Props])
	// have no limit.
	HandleTimeout time.Duration
	// FirstTimeout replaces HandleTimeout until a process has finished its first delivery, for which it may have to
	// compile or load; 0: [DefaultFirstTimeout]. It is at least HandleTimeout.
	FirstTimeout time.Duration
}

// DefaultFirstTimeout is how long the first handler of a process may run if the stage has a HandleTimeout.
const DefaultFirstTimeout = 10 * time.Minute

// Routing chooses the replica of a remote stage that gets a delivery.
type Routing int

const (
	// Sticky keeps a request at one replica: the one with the fewest requests at the first
	// delivery, and of those the one with the fewest deliveries. Stages with state need it.
	Sticky Routing = iota
	// LeastQueue gives each delivery to the replica with the fewest deliveries. Results may come in another
	// order than the inputs, as with RoundRobin: a pipeline with a join behind such a branch is refused.
	LeastQueue
	// RoundRobin gives deliveries to the replicas in turn.
	RoundRobin
)

var routings = [...]string{Sticky: "sticky", LeastQueue: "least-queue", RoundRobin: "round-robin"}

// String returns the word of pipeline files.
func (r Routing) String() string {
	if r.Valid() {
		return routings[r]
	}
	return fmt.Sprintf("routing %d", int(r))
}

// Valid reports whether there is such a routing.
func (r Routing) Valid() bool { return r >= 0 && int(r) < len(routings) }

// RemoteStage has the replicas and the unfinished work of a stage that other processes serve.
type RemoteStage struct {
	stage *stage
	spec  Remote

	mu       lockorder.Mutex[lockorder.RemoteStage] // guards the fields below
	serving  []*Replica                             // attached, in the order of their attachment
	replicas []*Replica                             // those that take work
	next     int                                    // of RoundRobin
	tasks    map[*remoteTask]struct{}
	waiting  []*Work   // for a replica, oldest first
	since    time.Time // when the oldest of them began to wait
	lostErr  error     // why no replica will attach any more
	timedOut int64     // handlers that ran for longer than HandleTimeout
}

// Replica is one process that serves a stage.
type Replica struct {
	ReplicaInfo
	remote      *RemoteStage
	conn        ReplicaConn
	endsUnasked bool // it ends tasks without being asked: see ReplicaTask.endsUnasked

	// Guarded by remote.mu.
	load     int  // unfinished deliveries
	finished bool // it has finished a delivery
	tasks    map[*remoteTask]*ReplicaTask
}

// ReplicaConn is the connection to the process of a replica.
type ReplicaConn interface {
	// OpenTask announces a task to the process and calls Assign. It is called with the stage's lock held.
	OpenTask(p *ReplicaTask)
	Describe() string
	// Running lists the handlers of the replica that have not returned. It is called without locks.
	Running(rep *Replica) []scoreboard.Activity
}

// TaskConn is the connection of one task to the process of a replica. Its methods are called with
// the stage's lock held, and do not wait.
type TaskConn interface {
	// DeliverWork sends all parts of a work to the process. It reports false when the process is
	// gone. After an error no part is sent, and the request fails.
	DeliverWork(w *Work, parts []*Delivery) (taken bool, err error)
	EndTask()
	// TaskOver ends the task. With known the process has ended it already.
	TaskOver(known bool)
}

// remoteTask is a task at a remote stage.
type remoteTask struct {
	task *Task

	// Guarded by remote.mu.
	stickyReplica *Replica // of a sticky request; nil: not chosen yet, or the request is not sticky
	works         []*Work  // unfinished, in the order of arrival
	delivered     bool     // a replica has got a delivery of it
	output        output   // the emissions of the whole task
	attempt       int      // replays
	retained      []*Work  // finished, kept for a replay
	lastWorks     []*Work  // works with a last input, which wait until all others are finished
	ending        bool     // its inputs have ended
	answersLeft   int      // replicas that have not answered the end; -1: not asked yet
	answeredEarly bool     // a replica has ended it before it was asked
	ended         bool     // all replicas have answered
	endEmissions  uint64   // emissions made before the replicas were asked
	endErr        error
	failed        bool // a work has ended with an error, or was not delivered: the request is about to fail
}

// ReplicaTask is a task at one replica. The fields below replica are guarded by remote.mu.
type ReplicaTask struct {
	rt          *remoteTask
	replica     *Replica
	conn        TaskConn
	ending      bool // the replica was asked to end the task, and has not answered
	handled     bool // the handler of the last finished delivery has returned
	endedInputs int  // streams whose last delivery it has got
}

// endsUnasked reports whether the replica ends the task without being asked: it has got the last
// delivery of every input, and its stage does nothing at the end.
func (p *ReplicaTask) endsUnasked() bool {
	return p.replica.endsUnasked && p.endedInputs == len(p.replica.remote.stage.in)
}

// Work is the input of one call of a handler: one delivery, or one of each branch. Fields other
// than rt and parts are guarded by remote.mu.
type Work struct {
	rt          *remoteTask
	parts       []*Delivery
	replica     *Replica     // nil: it waits for a replica
	partsBuf    [1]*Delivery // backs parts for all but joins
	left        int          // unfinished parts
	undelivered bool         // DeliverWork found the replica gone: it has not got the work
	err         error
	tries       int
	output      output // of this work alone, for stages without state
}

// giveWork gives one delivery, or one of each branch, to a replica.
func (r *RemoteStage) giveWork(t *Task, parts ...*Delivery) {
	for _, d := range parts {
		d.state.Store(stateHeld)
		t.hold(d)
	}
	var after AfterUnlock
	defer after.Run()
	r.mu.Lock()
	defer r.mu.Unlock()
	rt := r.taskOf(t)
	w := &Work{rt: rt}
	w.parts = append(w.partsBuf[:0], parts...)
	rt.works = append(rt.works, w)
	r.route(w, &after)
}

// taskOf returns the remoteTask of a task. Only the worker calls it.
func (r *RemoteStage) taskOf(t *Task) *remoteTask {
	rt, ok := t.State.(*remoteTask)
	if !ok {
		rt = &remoteTask{task: t, answersLeft: -1}
		t.State = rt
		r.tasks[rt] = struct{}{}
	}
	return rt
}

// sticky reports whether requests stay with one replica.
func (r *RemoteStage) sticky() bool {
	return r.stage.spec.State == StateRequest || r.spec.Routing == Sticky
}

// route, with mu held, gives work to a replica, or lets it wait for one. Where a request may
// be at several replicas, its last inputs wait until all others are finished: a replica that
// has got the last inputs ends its part, and could not handle a repeat of another replica's work.
func (r *RemoteStage) route(w *Work, after *AfterUnlock) {
	if !r.sticky() && w.endsInput() && len(w.rt.works) > 1 {
		w.rt.lastWorks = append(w.rt.lastWorks, w)
		r.routeLast(w.rt, after)
		return
	}
	r.send(w, after)
}

// routeLast, with mu held, gives the first of the last works to a replica, when no other work is unfinished.
func (r *RemoteStage) routeLast(rt *remoteTask, after *AfterUnlock) {
	if len(rt.lastWorks) == 0 || len(rt.works) > len(rt.lastWorks) {
		return
	}
	w := rt.lastWorks[0]
	rt.lastWorks = slices.Delete(rt.lastWorks, 0, 1)
	r.send(w, after)
}

// endsInput reports whether the work has the last delivery of an input.
func (w *Work) endsInput() bool {
	return slices.ContainsFunc(w.parts, func(d *Delivery) bool { return d.EOS })
}

// send, with mu held, gives work to a replica, or lets it wait for one.
func (r *RemoteStage) send(w *Work, after *AfterUnlock) {
	rep := w.rt.stickyReplica
	if rep == nil {
		rep = r.choose()
	}
	if rep == nil {
		if len(r.waiting) == 0 {
			r.since = time.Now()
		}
		r.waiting = append(r.waiting, w)
		if r.lostErr != nil {
			w.rt.task.failAtAfterUnlock(w.parts[0], r.lostErr, after)
		}
		return
	}
	if r.sticky() {
		w.rt.stickyReplica = rep
	}
	w.replica, w.left = rep, len(w.parts)
	w.rt.delivered = true
	rep.load += len(w.parts)
	p := rep.openTask(w.rt)
	for _, d := range w.parts {
		if d.EOS {
			p.endedInputs++
		}
	}
	taken, err := p.conn.DeliverWork(w, w.parts)
	w.undelivered = !taken
	if err != nil {
		rep.load -= len(w.parts)
		w.replica, w.rt.failed = nil, true
		after.Fail(w.rt.task.outputs.req, err)
		after.finish(w.parts...)
		r.removeWork(w, after)
	}
}

// choose, with mu held, returns the replica for the next work; nil: there is none.
func (r *RemoteStage) choose() *Replica {
	if len(r.replicas) == 0 {
		return nil
	}
	if r.spec.Routing == RoundRobin {
		r.next++
		return r.replicas[r.next%len(r.replicas)]
	}
	return slices.MinFunc(r.replicas, func(a, b *Replica) int {
		if r.sticky() { // load does not count deliveries on direct paths, nor idle requests, which send more later
			return cmp.Or(len(a.tasks)-len(b.tasks), a.load-b.load)
		}
		return a.load - b.load
	})
}

// openTask, with mu held, opens a task at the replica, unless it is open there.
func (rep *Replica) openTask(rt *remoteTask) *ReplicaTask {
	p := rep.tasks[rt]
	if p == nil {
		p = &ReplicaTask{rt: rt, replica: rep}
		rep.tasks[rt] = p
		rep.conn.OpenTask(p)
	}
	return p
}

// Finished is called when a replica has finished one part of a work. handled is set if it emits
// nothing more for that part.
func (w *Work) Finished(err error, handled bool) {
	r := w.rt.task.stage.remote
	var after AfterUnlock
	defer after.Run()
	r.mu.Lock()
	w.replica.load--
	w.replica.finished = true
	w.left--
	if p := w.replica.tasks[w.rt]; p != nil {
		p.handled = handled
	}
	if w.err == nil {
		w.err = err
	}
	if w.left > 0 {
		r.mu.Unlock()
		return
	}
	w.replica = nil
	w.rt.failed = w.rt.failed || w.err != nil
	r.removeWork(w, &after)
	retain := r.stage.spec.Replay && w.err == nil && !w.rt.task.outputs.req.over()
	var credits []func()
	if retain {
		for _, d := range w.parts { // before a replay, or the end of the task, which may follow when the lock is released
			credits = append(credits, d.retainHeld())
		}
		w.rt.retained = append(w.rt.retained, w)
	}
	ended := r.tryEnd(w.rt, &after)
	r.mu.Unlock()
	for _, giveCredit := range credits {
		giveCredit()
	}
	if !retain {
		for _, d := range w.parts {
			_ = d.Finish(w.err) // an error means that a repeat was finished before
		}
	}
	if ended { // last, so that the worker runs once
		w.rt.task.answered.Store(true)
		w.rt.task.wakeAndRun()
	}
}

// removeWork, with mu held, removes a finished work from the list.
func (r *RemoteStage) removeWork(w *Work, after *AfterUnlock) {
	rt := w.rt
	if i := slices.Index(rt.works, w); i >= 0 {
		rt.works = slices.Delete(rt.works, i, i+1)
	}
	r.routeLast(rt, after)
}

// retainHeld ends the work on a delivery and keeps its payload for a replay, as
// [Task.retain] does. then returns its credit for one delivery.
func (d *Delivery) retainHeld() (then func()) {
	if !d.state.CompareAndSwap(stateHeld, stateFinished) {
		return func() {}
	}
	giveCredit := d.retainBytes()
	return func() {
		giveCredit()
		d.flow.consumer.unhold()
	}
}

// Attach adds a replica. It gets the lowest free number that is not below from, and no work before Begin.
// ends says that it ends tasks unasked where its stage does nothing at the end.
func (r *RemoteStage) Attach(a ReplicaConn, from int, ends bool) *Replica {
	r.mu.Lock()
	defer r.mu.Unlock()
	rep := &Replica{remote: r, conn: a, endsUnasked: ends, tasks: make(map[*remoteTask]*ReplicaTask)}
	spec := &r.stage.spec
	rep.ReplicaInfo = ReplicaInfo{
		Stage: spec.Name, Number: r.freeNumber(from), Requests: spec.MaxInflight * spec.Replicas, // all of the stage: other replicas may die
		State: spec.State, Join: r.spec.Join, Batch: r.spec.Batch, Ins: r.stage.inPorts, Outs: r.stage.outPorts,
	}
	r.serving = append(r.serving, rep)
	return rep
}

// freeNumber, with mu held, returns the lowest number that is not below from and that no replica has.
func (r *RemoteStage) freeNumber(from int) int {
	taken := make(map[int]bool, len(r.serving))
	for _, rep := range r.serving {
		taken[rep.Number] = true
	}
	for taken[from] {
		from++
	}
	return from
}

// Begin lets an attached replica take work, the waiting work first.
func (rep *Replica) Begin() {
	r := rep.remote
	var after AfterUnlock
	defer after.Run()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lostErr = nil
	r.replicas = append(r.replicas, rep)
	waiting := r.waiting
	r.waiting = nil
	for _, w := range waiting {
		r.send(w, &after)
	}
	for rt := range r.tasks {
		r.checkEnd(rt, &after)
	}
}

// Retire stops new requests, and work that other replicas can take, from going to the replica.
func (rep *Replica) Retire() {
	r := rep.remote
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replicas = slices.DeleteFunc(r.replicas, func(other *Replica) bool { return other == rep })
}

// HandleLimit is how long a handler of the replica may run now; 0: for ever.
func (rep *Replica) HandleLimit() time.Duration {
	r := rep.remote
	if r.spec.HandleTimeout == 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !rep.finished {
		return max(cmp.Or(r.spec.FirstTimeout, DefaultFirstTimeout), r.spec.HandleTimeout)
	}
	return r.spec.HandleTimeout
}

// TimedOut counts a handler that has exceeded HandleLimit.
func (rep *Replica) TimedOut() {
	r := rep.remote
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timedOut++
}

// handleTimeouts is how many handlers ran for longer than HandleTimeout.
func (r *RemoteStage) handleTimeouts() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.timedOut
}

// Served is the number of replicas that take work.
func (r *RemoteStage) Served() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.replicas)
}

// GiveUp fails all requests that wait for a replica, now and until one attaches.
func (r *RemoteStage) GiveUp(err error) {
	r.mu.Lock()
	r.lostErr = err
	var tasks []*Task
	for rt := range r.tasks {
		waits := slices.ContainsFunc(r.waiting, func(w *Work) bool { return w.rt == rt })
		if waits || (rt.ending && rt.answersLeft < 0 && len(rt.works) == 0) {
			tasks = append(tasks, rt.task)
		}
	}
	r.mu.Unlock()
	for _, t := range tasks {
		t.Fail(err)
	}
}

// unserved reports works that have waited for at least atLeast because no process serves the stage.
func (r *RemoteStage) unserved(atLeast time.Duration) []Stall {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 || len(r.serving) > 0 || time.Since(r.since) < atLeast {
		return nil
	}
	s := Stall{
		Request: r.waiting[0].rt.task.Request(), Stage: r.stage.spec.Name, Waited: time.Since(r.since), Holder: "no process serves it",
	}
	for _, w := range r.waiting {
		s.Deliveries += len(w.parts)
	}
	return []Stall{s}
}

// describe names the processes that have deliveries of a task.
func (r *RemoteStage) describe(t *Task) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var holders []string
	for rt := range r.tasks {
		if rt.task != t {
			continue
		}
		for _, p := range r.replicaTasks(rt) {
			n := 0
			for _, w := range r.worksAt(rt, p.replica) {
				n += w.left
			}
			holders = append(holders, fmt.Sprintf("%s has %d of them", p.replica.conn.Describe(), n))
		}
	}
	switch {
	case len(holders) > 0:
		return strings.Join(holders, ", ")
	case t.outputs.req.over():
		return "the process that handles them has not finished them yet"
	case len(r.serving) == 0:
		return "no process serves it"
	}
	return "they wait for a replica"
}
