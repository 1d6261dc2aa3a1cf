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

// linkState is how a link ends. Its lock comes after those of the other parts.
type linkState struct {
	mu       lockorder.Mutex[lockorder.Parting]
	closeErr error          // why this side ended it; nil: it has not
	goneErr  error          // why the host is gone; nil: it is not
	readers  sync.WaitGroup // payloads of the exchange; added to while not closing
}

// close has this side end it.
func (p *linkState) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closeErr == nil {
		p.closeErr = bus.ErrClosed
	}
}

// setHostGone notes that the connection is over, and why.
func (p *linkState) setHostGone(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closeErr != nil {
		err = p.closeErr
	}
	p.goneErr = fmt.Errorf("%w: %w", bus.ErrHostGone, err)
}

// err says why nothing more is begun; nil: it may be.
func (p *linkState) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.goneErr != nil {
		return p.goneErr
	}
	return p.closeErr
}

// hostErr says why the host is; nil: it is not.
func (p *linkState) hostErr() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.goneErr
}

// addReader counts one payload of the exchange more, unless this side ends it.
func (p *linkState) addReader() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closeErr == nil {
		p.readers.Add(1)
	}
	return p.closeErr == nil
}

// questions is what a node has asked its host, by tokens.
type questions struct {
	mu      lockorder.Mutex[lockorder.Asked]
	pending map[uint32]*question // nil: the host is gone
}

// add remembers a question. It reports false when the host is gone.
func (a *questions) add(token uint32, q *question) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending == nil {
		return false
	}
	a.pending[token] = q
	return true
}

// remove forgets a question; nil: it is not open.
func (a *questions) remove(token uint32) *question {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.pending[token]
	delete(a.pending, token)
	return q
}

// find finds a question, and forgets it if it is for descriptors: the caller that asked waits for
// what comes then, also when its context is over.
func (a *questions) find(token uint32, descriptors bool) *question {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.pending[token]
	if q != nil && q.descriptors && descriptors {
		delete(a.pending, token)
	}
	return q
}

// close forgets all questions, and lets none be asked any more.
func (a *questions) close() map[uint32]*question {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.pending
	a.pending = nil
	return all
}

// linkWork is what a node does for its host, and has it do. Its lock is held while a task or a
// request begins: it comes before those of a bus, of arrivals and of senders.
type linkWork struct {
	began chan struct{} // takes one: a task or a request has begun

	mu       lockorder.Mutex[lockorder.Begun]
	stages   []*nodeStage
	tasks    map[uint32]*nodeTask
	requests map[uint32]*remoteRequest
	caller   *bus.OpenedPart // carries what this process submits, once it does
	lost     bool            // the host is gone
	closed   bool            // this process has said goodbye
}

// addStage adds a stage.
func (b *linkWork) addStage(st *nodeStage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stages = append(b.stages, st)
}

// servedStages is a snapshot of the stages that are served here.
func (b *linkWork) servedStages() []*nodeStage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.stages)
}

// callerPart is the bus that carries what this process submits; nil: it has not.
func (b *linkWork) callerPart() *bus.OpenedPart {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.caller
}

// setCaller has a bus carry it. It reports false when the host is gone.
func (b *linkWork) setCaller(caller *bus.OpenedPart) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.lost {
		b.caller = caller
	}
	return !b.lost
}

// addTask has a task begin at a stage; nil: it is not to be handled here.
func (b *linkWork) addTask(id, stage uint32, begin func(st *nodeStage) (*nodeTask, error)) (*nodeTask, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if int(stage) >= len(b.stages) {
		return nil, fmt.Errorf("%w: a task for stage %d of %d", wire.ErrProtocol, stage, len(b.stages))
	}
	if b.closed {
		return nil, nil // the host has not heard the goodbye, and takes back what it gives us now
	}
	t, err := begin(b.stages[stage])
	if err == nil {
		b.tasks[id] = t
		b.notifyBegan()
	}
	return t, err
}

// notifyBegan says that something has begun.
func (b *linkWork) notifyBegan() {
	select {
	case b.began <- struct{}{}:
	default:
	}
}

// addRequest has a request begin, and the host told of it. It reports false when that is gone.
func (b *linkWork) addRequest(rr *remoteRequest, begin func(), tell func() error) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	begin()
	if b.lost {
		return false, nil
	}
	b.requests[rr.source] = rr
	b.notifyBegan()
	return true, tell()
}

// find finds a task or a request; both are nil of one that is over.
func (b *linkWork) find(source uint32) (*nodeTask, *remoteRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tasks[source], b.requests[source]
}

// forgetOver forgets a task that is over at the host, or a request, unless results may be on their way.
func (b *linkWork) forgetOver(source uint32, results bool) (*nodeTask, *remoteRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, rr := b.tasks[source], b.requests[source]
	delete(b.tasks, source)
	if !results {
		delete(b.requests, source)
	}
	return t, rr
}

// forgetTask forgets a task that is over here. It reports whether the host does not know.
func (b *linkWork) forgetTask(t *nodeTask) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.tasks[t.id] == t
	delete(b.tasks, t.id)
	return known
}

// forgetRequest is taskEnded of a request.
func (b *linkWork) forgetRequest(rr *remoteRequest) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.requests[rr.source] == rr
	delete(b.requests, rr.source)
	return known
}

// empty reports whether there is neither a task nor a request.
func (b *linkWork) empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.tasks)+len(b.requests) == 0
}

// list is a snapshot of tasks and requests.
func (b *linkWork) list() (map[uint32]*nodeTask, map[uint32]*remoteRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.tasks), maps.Clone(b.requests)
}

// markLost lets nothing more begin, and returns what has. What is left of that is still found by what
// other nodes send: results of a request that the host has completed may be on their way.
func (b *linkWork) markLost() (map[uint32]*nodeTask, map[uint32]*remoteRequest) {
	b.mu.Lock()
	b.lost = true
	b.mu.Unlock()
	return b.list()
}

// close lets no task begin, and returns what has begun: nothing is found of it any more.
func (b *linkWork) close() (map[uint32]*nodeTask, map[uint32]*remoteRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
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
	closed    bool                 // no node is met any more
}

// add takes in a pair. It reports false of a node that is known, and if none is met any more.
func (ps *peers) add(p *peerLink, self, receives bool) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	all := ps.senders
	if self && receives {
		all = ps.receivers // of a node with itself
	}
	if all[p.node] != nil || ps.closed {
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
	ps.closed = true
}
