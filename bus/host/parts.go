package host

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// What follows are parts of a session. Each has a lock, which its methods alone take: it comes
// after a remote stage's, and nothing is called while it is held.

// openQuestions counts the questions of a client that are being answered.
type openQuestions struct {
	mu   lockorder.Mutex[lockorder.Questions]
	open int
}

func (q *openQuestions) add() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open++; q.open > maxQuestions {
		return fmt.Errorf("%w: %d questions are open, %d may be", wire.ErrProtocol, q.open, maxQuestions)
	}
	return nil
}

func (q *openQuestions) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open--
}

// sourceSet is what a client emits for.
type sourceSet struct {
	mu      lockorder.Mutex[lockorder.SourceSet]
	closed  bool // the client is: there are no new ones
	all     map[uint32]*source
	opening int    // requests that wait for a place
	lastOwn uint32 // number of the last request that the client has numbered
}

// add takes in a source that the host has numbered. It reports false when the client is gone:
// the end of the session has taken all sources out.
func (ss *sourceSet) add(src *source) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.closed {
		return false
	}
	ss.all[src.id] = src
	return true
}

// addNumbered takes a request in, by the number that the client has chosen.
func (ss *sourceSet) addNumbered(src *source, number uint32) error {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	switch {
	case number&wire.OwnSource == 0:
		return fmt.Errorf("%w: the client numbers a request %d: use numbers from %d on", wire.ErrProtocol, number, uint32(wire.OwnSource))
	case number <= ss.lastOwn:
		return fmt.Errorf("%w: the client numbers a request %d, and has numbered one %d before: use higher numbers for later requests", wire.ErrProtocol, number, ss.lastOwn)
	}
	src.id, ss.lastOwn = number, number
	if ss.opening++; ss.opening > maxQuestions {
		return fmt.Errorf("%w: %d requests wait for a place, %d may", wire.ErrProtocol, ss.opening, maxQuestions)
	}
	ss.all[src.id] = src
	return nil
}

// openingDone notes that a request waits for its place no more.
func (ss *sourceSet) openingDone() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.opening--
}

// find finds a source; nil: there is none. lastOwn is the last that the client has numbered.
func (ss *sourceSet) find(id uint32) (src *source, lastOwn uint32) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.all[id], ss.lastOwn
}

func (ss *sourceSet) drop(id uint32) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.all, id)
}

// list is a snapshot.
func (ss *sourceSet) list() []*source {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return slices.Collect(maps.Values(ss.all))
}

// removeAll takes them all out.
func (ss *sourceSet) removeAll() map[uint32]*source {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	all := ss.all
	ss.all = nil
	return all
}

// close lets no source come that the host has numbered.
func (ss *sourceSet) close() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.closed = true
}

// replicas are the replicas that a client is, by the numbers that it knows.
type replicas struct {
	mu  lockorder.Mutex[lockorder.Seats]
	all []*bus.Replica
}

func (st *replicas) add(rep *bus.Replica) (number int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.all = append(st.all, rep)
	return len(st.all) - 1
}

// number is by what number the client knows a replica.
func (st *replicas) number(rep *bus.Replica) int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Index(st.all, rep)
}

// find finds a replica by its number; nil: there is none.
func (st *replicas) find(number uint32) *bus.Replica {
	st.mu.Lock()
	defer st.mu.Unlock()
	if uint64(number) >= uint64(len(st.all)) {
		return nil
	}
	return st.all[number]
}

// list is a snapshot.
func (st *replicas) list() []*bus.Replica {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Clone(st.all)
}

// directPaths is what goes from and to a client past the host.
type directPaths struct {
	mu      lockorder.Mutex[lockorder.Past]
	closed  bool                     // nothing begins to any more
	lanes   bool                     // deliveries can go to the client, and come from it, directly
	used    bool                     // something has gone to another process
	expects map[uint32][]*directFlow // what comes to its sources
	totals  map[uint32]directTotals  // what went to other nodes, by node
}

// enable says that the client can.
func (p *directPaths) enable() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lanes = true
}

// close lets nothing begin.
func (p *directPaths) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// state reports whether the client can, and whether anything may begin.
func (p *directPaths) state() (lanes, begins bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lanes, p.lanes && !p.closed
}

// mayReport reports whether the client may have something to say of what goes past the host:
// that is so of a node with sources, too.
func (p *directPaths) mayReport(sources bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.closed && (p.used || p.lanes && sources)
}

// markUsed notes that something goes to another process.
func (p *directPaths) markUsed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = true
}

// expect notes that a stream is to come to a source.
func (p *directPaths) expect(source uint32, df *directFlow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expects[source] = append(p.expects[source], df)
}

// forget notes that a source is over.
func (p *directPaths) forget(source uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.expects, source)
}

// expected counts the sources that streams come to, and the streams that come to one.
func (p *directPaths) expected(source uint32) (sources, streams int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.expects), len(p.expects[source])
}

// takeUnannounced finds the stream that comes by an edge, if its producer has not been told; nil: there
// is none, or it is over.
func (p *directPaths) takeUnannounced(source uint32, edge int) (df *directFlow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.expects[source] {
		if d.edge == edge && !d.announced {
			df, d.announced = d, true
		}
	}
	return df
}

// update takes in how much of a stream of the client's went past the host so far. It never
// becomes less: a counter that did would count everything again.
func (p *directPaths) update(df *directFlow, deliveries, bytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	more := directTotals{max(clampTotal(deliveries)-df.deliveries.Load(), 0), max(clampTotal(bytes)-df.bytes.Load(), 0)}
	df.deliveries.Add(more.deliveries)
	df.bytes.Add(more.bytes)
	to := df.consumer.sess.node
	sum := p.totals[to]
	p.totals[to] = directTotals{sum.deliveries + more.deliveries, sum.bytes + more.bytes}
}

// snapshot is how much went to which node.
func (p *directPaths) snapshot() map[uint32]directTotals {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.totals)
}

// forgetDeparted forgets nodes that are gone. Those who came after the newest of the living were
// not looked at.
func (p *directPaths) forgetDeparted(live map[uint32]*session) {
	newest := slices.Max(append(slices.Collect(maps.Keys(live)), 0))
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.totals, func(node uint32, _ directTotals) bool { return node < newest && live[node] == nil })
}

// stallDetector is whether a client that has work moves.
type stallDetector struct {
	mu        lockorder.Mutex[lockorder.Movement]
	lastCheck time.Time
	used      time.Duration // of processors, at the last look
	idle      time.Duration // since it moved
	stuck     bool          // it was found to be
}

// looksWithin is how many looks a client that does not move is given before it is stuck.
const checksPerLimit = 4

// stuckNow reports, once, that a client has not moved for a time, and has used no processor. Each look counts
// for a part of that time at most: while the host itself is stopped, it does not look.
func (m *stallDetector) stuckNow(moves bool, used, limit time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	passed := min(now.Sub(m.lastCheck), limit/checksPerLimit)
	m.lastCheck = now
	if moves || used != m.used {
		m.used, m.idle = used, 0
		return false
	}
	m.idle += passed
	stuck := !m.stuck && m.idle >= limit
	m.stuck = m.stuck || stuck
	return stuck
}
