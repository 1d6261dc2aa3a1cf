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

// The types below are parts of a session. Each has a lock that only its methods take. The lock comes
// after that of a remote stage, and no function is called with it held.

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

// sourceSet holds the sources of a client: its tasks and requests.
type sourceSet struct {
	mu      lockorder.Mutex[lockorder.SourceSet]
	closed  bool // the client has departed: no source that the host numbers is added
	all     map[uint32]*source
	opening int    // requests that wait for a permit
	lastOwn uint32 // highest number that the client has given a request
}

// add adds a source that the host has numbered. It reports false when the client has departed: teardown
// has removed all sources.
func (ss *sourceSet) add(src *source) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.closed {
		return false
	}
	ss.all[src.id] = src
	return true
}

// addNumbered adds a request under the number that the client chose.
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
		return fmt.Errorf("%w: %d requests wait for a permit, %d may", wire.ErrProtocol, ss.opening, maxQuestions)
	}
	ss.all[src.id] = src
	return nil
}

// openingDone is called when a request no longer waits for a permit.
func (ss *sourceSet) openingDone() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.opening--
}

// find returns a source; nil: there is none. lastOwn is the last number that the client has given.
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

// list returns a snapshot.
func (ss *sourceSet) list() []*source {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return slices.Collect(maps.Values(ss.all))
}

// removeAll removes all sources, and returns them.
func (ss *sourceSet) removeAll() map[uint32]*source {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	all := ss.all
	ss.all = nil
	return all
}

// close keeps out further sources that the host numbers.
func (ss *sourceSet) close() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.closed = true
}

// replicas are the replicas that a client serves, by the client's numbers for them.
type replicas struct {
	mu  lockorder.Mutex[lockorder.Replicas]
	all []*bus.Replica
}

func (st *replicas) add(rep *bus.Replica) (number int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.all = append(st.all, rep)
	return len(st.all) - 1
}

// number returns the client's number of a replica.
func (st *replicas) number(rep *bus.Replica) int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Index(st.all, rep)
}

// find returns a replica by its number; nil: there is none.
func (st *replicas) find(number uint32) *bus.Replica {
	st.mu.Lock()
	defer st.mu.Unlock()
	if uint64(number) >= uint64(len(st.all)) {
		return nil
	}
	return st.all[number]
}

// list returns a snapshot.
func (st *replicas) list() []*bus.Replica {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Clone(st.all)
}

// directPaths holds the direct flows from and to a client.
type directPaths struct {
	mu      lockorder.Mutex[lockorder.DirectPaths]
	closed  bool                     // no direct flow begins any more
	lanes   bool                     // the client can send and receive deliveries directly
	used    bool                     // a flow to another process has begun
	expects map[uint32][]*directFlow // flows to the client's sources, by source
	totals  map[uint32]directTotals  // direct deliveries to other nodes, by node
}

// enable notes that the client can send and receive directly.
func (p *directPaths) enable() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lanes = true
}

// close lets no further direct flow begin.
func (p *directPaths) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// state reports whether the client can send and receive directly, and whether a direct flow may begin.
func (p *directPaths) state() (lanes, begins bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lanes, p.lanes && !p.closed
}

// mayReport reports whether the client may have something to report: it has sent directly, or is a Go
// node with sources.
func (p *directPaths) mayReport(sources bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.closed && (p.used || p.lanes && sources)
}

// markUsed notes that a flow to another process has begun.
func (p *directPaths) markUsed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = true
}

// expect adds a flow to a source.
func (p *directPaths) expect(source uint32, df *directFlow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expects[source] = append(p.expects[source], df)
}

// forget removes the flows to a source that has ended.
func (p *directPaths) forget(source uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.expects, source)
}

// expected returns how many sources have flows, and how many flows one source has.
func (p *directPaths) expected(source uint32) (sources, streams int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.expects), len(p.expects[source])
}

// takeUnannounced returns the flow over an edge if its producer was not told yet, and marks it as told;
// nil: there is none, or it has ended.
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

// update records how much of a flow of the client went directly so far. A total never decreases: a
// metric would count a decrease as a restart from zero.
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

// snapshot returns the totals by node.
func (p *directPaths) snapshot() map[uint32]directTotals {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.totals)
}

// forgetDeparted removes the totals of departed nodes. Nodes that are newer than the newest one in live
// are kept: they came after the snapshot.
func (p *directPaths) forgetDeparted(live map[uint32]*session) {
	newest := slices.Max(append(slices.Collect(maps.Keys(live)), 0))
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.totals, func(node uint32, _ directTotals) bool { return node < newest && live[node] == nil })
}

// stallDetector decides whether a client that has work is stuck.
type stallDetector struct {
	mu        lockorder.Mutex[lockorder.StallDetector]
	lastCheck time.Time
	used      time.Duration // processor time at the last check
	idle      time.Duration // time since the client made progress
	stuck     bool          // stuckNow has reported it
}

// checksPerLimit is how many checks without progress make a client stuck.
const checksPerLimit = 4

// stuckNow reports, once, that a client has made no progress for the limit and used no processor time.
// Each check counts for at most limit/checksPerLimit: while the host itself is stopped, it does not
// check.
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
