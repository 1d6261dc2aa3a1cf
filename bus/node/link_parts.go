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

// The types below are parts of a link. Each part has a lock that only its methods take. A method calls
// other code under its lock only where its comment says so.

// linkState is whether and why a link has ended. Its lock comes after the locks of the other parts.
type linkState struct {
	mu       lockorder.Mutex[lockorder.LinkState]
	closeErr error          // why this side closed the link; nil: it has not
	goneErr  error          // why the host is gone; nil: it is there
	readers  sync.WaitGroup // fetched payloads of the exchange; added to only before close
}

// close records that this side closes the link.
func (p *linkState) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closeErr == nil {
		p.closeErr = bus.ErrClosed
	}
}

// setHostGone records why the connection has ended.
func (p *linkState) setHostGone(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closeErr != nil {
		err = p.closeErr
	}
	p.goneErr = fmt.Errorf("%w: %w", bus.ErrHostGone, err)
}

// err is why nothing new may begin; nil: it may.
func (p *linkState) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.goneErr != nil {
		return p.goneErr
	}
	return p.closeErr
}

// hostErr is why the host is gone; nil: it is there.
func (p *linkState) hostErr() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.goneErr
}

// addReader counts a fetched payload of the exchange. It reports false when this side has closed
// the link.
func (p *linkState) addReader() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closeErr == nil {
		p.readers.Add(1)
	}
	return p.closeErr == nil
}

// questions are the open questions of a link, by token.
type questions struct {
	mu      lockorder.Mutex[lockorder.NodeQuestions]
	pending map[uint32]*question // nil: the host is gone
}

// add registers a question. It reports false when the host is gone.
func (a *questions) add(token uint32, q *question) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending == nil {
		return false
	}
	a.pending[token] = q
	return true
}

// remove unregisters a question, and returns it; nil: it is not open.
func (a *questions) remove(token uint32) *question {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.pending[token]
	delete(a.pending, token)
	return q
}

// find returns an open question. With descriptors, it also unregisters a question for descriptors:
// its caller then waits for the answer even if its context has ended.
func (a *questions) find(token uint32, descriptors bool) *question {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.pending[token]
	if q != nil && q.descriptors && descriptors {
		delete(a.pending, token)
	}
	return q
}

// close unregisters all questions, and has add report false.
func (a *questions) close() map[uint32]*question {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.pending
	a.pending = nil
	return all
}

// linkWork are the stages and tasks of a link, and the requests that were submitted by it. Its lock
// is held while a task or a request begins: it comes before the locks of a bus, of resequencers and
// of senders.
type linkWork struct {
	began chan struct{} // has capacity 1: signals that a task or a request has begun

	mu       lockorder.Mutex[lockorder.LinkWork]
	stages   []*nodeStage
	tasks    map[uint32]*nodeTask
	requests map[uint32]*remoteRequest
	caller   *bus.OpenedPart // the bus of submitted requests; nil before the first
	lost     bool            // the host is gone
	closed   bool            // this side has closed the link
}

// addStage adds a stage.
func (b *linkWork) addStage(st *nodeStage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stages = append(b.stages, st)
}

// servedStages is a snapshot of the served stages.
func (b *linkWork) servedStages() []*nodeStage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.stages)
}

// callerPart is the bus of submitted requests; nil: there is none yet.
func (b *linkWork) callerPart() *bus.OpenedPart {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.caller
}

// setCaller sets the bus of submitted requests. It reports false when the host is gone.
func (b *linkWork) setCaller(caller *bus.OpenedPart) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.lost {
		b.caller = caller
	}
	return !b.lost
}

// addTask has begin create a task, under the lock, and registers it; nil: the link is closed.
func (b *linkWork) addTask(id, stage uint32, begin func(st *nodeStage) (*nodeTask, error)) (*nodeTask, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if int(stage) >= len(b.stages) {
		return nil, fmt.Errorf("%w: a task for stage %d of %d", wire.ErrProtocol, stage, len(b.stages))
	}
	if b.closed {
		return nil, nil // the host has not received Bye yet, and redelivers this task's work then
	}
	t, err := begin(b.stages[stage])
	if err == nil {
		b.tasks[id] = t
		b.notifyBegan()
	}
	return t, err
}

// notifyBegan signals that a task or a request has begun.
func (b *linkWork) notifyBegan() {
	select {
	case b.began <- struct{}{}:
	default:
	}
}

// addRequest calls begin, registers the request, and calls tell, all under the lock. It reports
// false, without registering, when the host is gone.
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

// find returns the task or the request of a source; both are nil if it has ended.
func (b *linkWork) find(source uint32) (*nodeTask, *remoteRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tasks[source], b.requests[source]
}

// forgetOver unregisters the task or the request that has ended at the host, and returns it. With
// results, a request stays registered, since direct results may be on their way.
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

// forgetTask unregisters a task that has ended here. It reports false if the host had ended it
// before.
func (b *linkWork) forgetTask(t *nodeTask) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.tasks[t.id] == t
	delete(b.tasks, t.id)
	return known
}

// forgetRequest is forgetTask for a request.
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

// markLost has no more requests begin, and returns all tasks and requests. They stay registered for
// messages of peers: direct results of a completed request may be on their way.
func (b *linkWork) markLost() (map[uint32]*nodeTask, map[uint32]*remoteRequest) {
	b.mu.Lock()
	b.lost = true
	b.mu.Unlock()
	return b.list()
}

// close has no more tasks begin, and returns and unregisters all tasks and requests.
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

// peers are the nodes that the host has introduced to this node.
type peers struct {
	mu        lockorder.Mutex[lockorder.Peers]
	senders   map[uint32]*peerLink // to send to
	receivers map[uint32]*peerLink // to receive from: the same links, except for a node's link with itself
	closed    bool                 // no peer is added any more
}

// add adds a peer. It reports false for a known node, and after close. A node has two links with
// itself; receives selects the receiving one.
func (ps *peers) add(p *peerLink, self, receives bool) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	all := ps.senders
	if self && receives {
		all = ps.receivers // the receiving link of a node with itself
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

// list is a snapshot of all links.
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

// close has no more peers added.
func (ps *peers) close() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.closed = true
}
