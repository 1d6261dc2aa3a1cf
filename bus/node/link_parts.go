package node

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// What follows are parts of a link. Each has a lock, which its methods alone take. Nothing else
// is called while it is held, but for what says so.

// parting is how a link ends. Its lock comes after those of the other parts.
type parting struct {
	mu      lockorder.Mutex[lockorder.Parting]
	closing error          // why this side ended it; nil: it has not
	err     error          // why the host is gone; nil: it is not
	reading sync.WaitGroup // payloads of the exchange; added to while not closing
}

// close has this side end it.
func (p *parting) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing == nil {
		p.closing = bus.ErrClosed
	}
}

// lose notes that the connection is over, and why.
func (p *parting) lose(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing != nil {
		err = p.closing
	}
	p.err = fmt.Errorf("%w: %w", bus.ErrHostGone, err)
}

// why says why nothing more is begun; nil: it may be.
func (p *parting) why() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	return p.closing
}

// lost says why the host is; nil: it is not.
func (p *parting) lost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// reads counts one payload of the exchange more, unless this side ends it.
func (p *parting) reads() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing == nil {
		p.reading.Add(1)
	}
	return p.closing == nil
}

// asked is what a node has asked its host, by tokens.
type asked struct {
	mu   lockorder.Mutex[lockorder.Asked]
	open map[uint32]*question // nil: the host is gone
}

// pose remembers a question. It reports false when the host is gone.
func (a *asked) pose(token uint32, q *question) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		return false
	}
	a.open[token] = q
	return true
}

// settle forgets a question; nil: it is not open.
func (a *asked) settle(token uint32) *question {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.open[token]
	delete(a.open, token)
	return q
}

// find finds a question, and forgets it if it is for descriptors: the caller that asked waits for
// what comes then, also when its context is over.
func (a *asked) find(token uint32, descriptors bool) *question {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.open[token]
	if q != nil && q.descriptors && descriptors {
		delete(a.open, token)
	}
	return q
}

// end forgets all questions, and lets none be asked any more.
func (a *asked) end() map[uint32]*question {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.open
	a.open = nil
	return all
}

// begun is what a node does for its host, and has it do. Its lock is held while a task or a
// request begins: it comes before those of a bus, of arrivals and of senders.
type begun struct {
	began chan struct{} // takes one: a task or a request has begun

	mu       lockorder.Mutex[lockorder.Begun]
	stages   []*nodeStage
	tasks    map[uint32]*nodeTask
	requests map[uint32]*remoteRequest
	caller   *bus.OpenedPart // carries what this process submits, once it does
	lost     bool            // the host is gone
	left     bool            // this process has said goodbye
}

// serve adds a stage.
func (b *begun) serve(st *nodeStage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stages = append(b.stages, st)
}

// served is a snapshot of the stages that are served here.
func (b *begun) served() []*nodeStage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.stages)
}

// carrier is the bus that carries what this process submits; nil: it has not.
func (b *begun) carrier() *bus.OpenedPart {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.caller
}

// carry has a bus carry it. It reports false when the host is gone.
func (b *begun) carry(caller *bus.OpenedPart) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.lost {
		b.caller = caller
	}
	return !b.lost
}

// task has a task begin at a stage; nil: it is not to be handled here.
func (b *begun) task(id, stage uint32, begin func(st *nodeStage) (*nodeTask, error)) (*nodeTask, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if int(stage) >= len(b.stages) {
		return nil, fmt.Errorf("%w: a task for stage %d of %d", wire.ErrProtocol, stage, len(b.stages))
	}
	if b.left {
		return nil, nil // the host has not heard the goodbye, and takes back what it gives us now
	}
	t, err := begin(b.stages[stage])
	if err == nil {
		b.tasks[id] = t
		b.note()
	}
	return t, err
}

// note says that something has begun.
func (b *begun) note() {
	select {
	case b.began <- struct{}{}:
	default:
	}
}

// request has a request begin, and the host told of it. It reports false when that is gone.
func (b *begun) request(up *remoteRequest, begin func(), tell func() error) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	begin()
	if b.lost {
		return false, nil
	}
	b.requests[up.source] = up
	b.note()
	return true, tell()
}

// find finds a task or a request; both are nil of one that is over.
func (b *begun) find(source uint32) (*nodeTask, *remoteRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tasks[source], b.requests[source]
}

// over forgets a task that is over at the host, or a request, unless results may be on their way.
func (b *begun) over(source uint32, results bool) (*nodeTask, *remoteRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, u := b.tasks[source], b.requests[source]
	delete(b.tasks, source)
	if !results {
		delete(b.requests, source)
	}
	return t, u
}

// taskEnded forgets a task that is over here. It reports whether the host does not know.
func (b *begun) taskEnded(t *nodeTask) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.tasks[t.id] == t
	delete(b.tasks, t.id)
	return known
}

// requestEnded is taskEnded of a request.
func (b *begun) requestEnded(up *remoteRequest) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.requests[up.source] == up
	delete(b.requests, up.source)
	return known
}

// none reports whether there is neither a task nor a request.
func (b *begun) none() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.tasks)+len(b.requests) == 0
}

// list is a snapshot of tasks and requests.
func (b *begun) list() (map[uint32]*nodeTask, map[uint32]*remoteRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.tasks), maps.Clone(b.requests)
}

// lose lets nothing more begin, and returns what has. What is left of that is still found by what
// other nodes send: results of a request that the host has completed may be on their way.
func (b *begun) lose() (map[uint32]*nodeTask, map[uint32]*remoteRequest) {
	b.mu.Lock()
	b.lost = true
	b.mu.Unlock()
	return b.list()
}

// leave lets no task begin, and returns what has begun: nothing is found of it any more.
func (b *begun) leave() (map[uint32]*nodeTask, map[uint32]*remoteRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = true
	tasks, requests := b.tasks, b.requests
	if !b.lost {
		b.tasks, b.requests = make(map[uint32]*nodeTask), make(map[uint32]*remoteRequest)
	}
	return tasks, requests
}

// peers are the nodes that a node was introduced to.
type peers struct {
	mu        lockorder.Mutex[lockorder.Peers]
	senders   map[uint32]*peerLink // to send to
	receivers map[uint32]*peerLink // to receive from: the same, but of a node with itself
	alone     bool                 // no node is met any more
}

// add takes in a pair. It reports false of a node that is known, and if none is met any more.
func (ps *peers) add(p *peerLink, self, receives bool) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	all := ps.senders
	if self && receives {
		all = ps.receivers // of a node with itself
	}
	if all[p.node] != nil || ps.alone {
		return false
	}
	all[p.node] = p
	if !self {
		ps.receivers[p.node] = p
	}
	return true
}

func (ps *peers) sender(node uint32) *peerLink {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.senders[node]
}

func (ps *peers) receiver(node uint32) *peerLink {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.receivers[node]
}

// list is a snapshot.
func (ps *peers) list() (all []*peerLink) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for node, p := range ps.senders {
		all = append(all, p)
		if other := ps.receivers[node]; other != p && other != nil {
			all = append(all, other)
		}
	}
	return all
}

// close lets no node be met any more.
func (ps *peers) close() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.alone = true
}
