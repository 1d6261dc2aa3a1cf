package node

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// resequencer orders the inputs of a task, or the results of a submitted request. A stream may come
// in two parts, first through the host and then directly from another node; the resequencer hands
// on its deliveries in the order of their sequence numbers.
type resequencer struct {
	req   *bus.Request
	ports []bus.Port
	// feedsEnd has the end of a stream fed too, as a bare delivery.
	feedsEnd bool

	mu           lockorder.Mutex[lockorder.Resequencer] // taken before the locks of flows
	streams      []incomingStream
	single       [1]incomingStream // backs streams where there is but one
	done         func()            // called when all streams are complete; nil: whenComplete was not called
	doneDue      func()            // done, to be called without mu
	afterUnlock  bus.AfterUnlock
	dropped      bool // drop was called
	inconsistent bool // the request fails, even if the host completes it
}

// incomingStream is one stream.
type incomingStream struct {
	next            uint64          // the next sequence number to hand on
	early           []*bus.Delivery // deliveries that came before an earlier one, by sequence number
	total           uint64          // the length of the stream, if totalKnown
	totalKnown      bool
	ended           bool // the end was handed on
	endedByDelivery bool // ... by the last delivery

	from              *peerLink    // the node that may send it directly; nil: only the host sends it
	peerGone          bool         // from is gone
	firstDirect       uint64       // the sequence number of the first direct delivery
	directCount       uint64       // the number of direct deliveries
	unfinishedDirect  atomic.Int64 // direct deliveries that are not finished
	unfinishedRelayed atomic.Int64 // relayed deliveries that are not finished
}

// init prepares a for the streams of the ports.
func (a *resequencer) init(req *bus.Request, ports []bus.Port, closes bool) *resequencer {
	a.req, a.ports, a.feedsEnd = req, ports, closes
	if a.streams = a.single[:]; len(ports) != 1 {
		a.streams = make([]incomingStream, len(ports))
	}
	return a
}

// stream, with mu held, finds the stream of an edge number in a message.
func (a *resequencer) stream(edge uint16) (*incomingStream, error) {
	if int(edge) >= len(a.streams) {
		return nil, fmt.Errorf("%w: edge %d of %d", wire.ErrProtocol, edge, len(a.streams))
	}
	return &a.streams[edge], nil
}

// relayed handles a delivery that came through the host.
func (a *resequencer) relayed(edge uint16, d *bus.Delivery) error {
	a.mu.Lock()
	defer a.unlock()
	st, err := a.stream(edge)
	if err != nil {
		d.Control().Discard()
		return err
	}
	st.unfinishedRelayed.Add(1)
	d.Control().CountUnfinished(&st.unfinishedRelayed)
	if st.from == nil { // the host keeps the order that Routing promises
		a.feed(int(edge), st, d)
		return nil
	}
	err = a.insert(int(edge), st, d)
	if err == nil || st.directCount == 0 {
		return err
	}
	a.failInconsistent(edge, st, err)
	return nil
}

// failInconsistent, with mu held, fails the request and the link to its sender: the sender
// contradicts here what it has told the host. The connection to the host goes on, since the host
// only relayed the claim.
func (a *resequencer) failInconsistent(edge uint16, st *incomingStream, err error) {
	a.inconsistent = true
	err = fmt.Errorf("deliveries from %s: %w", st.from.describe(), err)
	a.fail(edge, err)
	if sender := st.from.connection(); sender != nil {
		sender.Fail(err)
	}
}

// direct handles a delivery that came from another node.
func (a *resequencer) direct(p *peerLink, edge uint16, d *bus.Delivery) error {
	a.mu.Lock()
	defer a.unlock()
	st, err := a.stream(edge)
	switch {
	case err != nil:
	case st.from != p:
		err = fmt.Errorf("%w: a delivery on %s, which is not expected from there", wire.ErrProtocol, a.ports[edge].Name)
	case uint64(st.unfinishedDirect.Load()) >= a.ports[edge].Limit:
		err = fmt.Errorf("%w: %d deliveries on %s are not finished, more than its window", wire.ErrProtocol, st.unfinishedDirect.Load(), a.ports[edge].Name)
	}
	if err != nil {
		d.Control().Discard()
		return err
	}
	if st.directCount == 0 {
		st.firstDirect = d.Seq
	}
	st.directCount++
	st.unfinishedDirect.Add(1)
	d.Control().CountUnfinished(&st.unfinishedDirect)
	return a.insert(int(edge), st, d)
}

// insert, with mu held, takes in a delivery, and hands on all that are next in order.
func (a *resequencer) insert(edge int, st *incomingStream, d *bus.Delivery) error {
	i, found := slices.BinarySearchFunc(st.early, d.Seq, func(e *bus.Delivery, seq uint64) int {
		return cmp.Compare(e.Seq, seq)
	})
	switch {
	case a.dropped:
		d.Control().Discard()
		return nil
	case d.Seq < st.next, found, st.ended:
		err := fmt.Errorf("%w: sequence %d on %s came again, %d is next", wire.ErrProtocol, d.Seq, a.ports[edge].Name, st.next)
		d.Control().Discard()
		return err
	}
	st.early = slices.Insert(st.early, i, d)
	n := 0
	for n < len(st.early) && st.early[n].Seq == st.next {
		a.feed(edge, st, st.early[n])
		n++
	}
	st.early = slices.Delete(st.early, 0, n)
	a.endCompleteStreams()
	return nil
}

// feed, with mu held, hands on a delivery.
func (a *resequencer) feed(edge int, st *incomingStream, d *bus.Delivery) {
	st.next = d.Seq + 1
	if d.EOS {
		st.ended, st.endedByDelivery = true, true
	}
	a.req.Control().Feed(a.ports[edge], d, &a.afterUnlock)
}

// expect allows direct deliveries of a stream from a node.
func (a *resequencer) expect(edge uint16, p *peerLink) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	st, err := a.stream(edge)
	if err == nil && st.from != nil {
		err = fmt.Errorf("%w: %s is expected from node %d already", wire.ErrProtocol, a.ports[edge].Name, st.from.node)
	}
	if err == nil {
		st.from = p
	}
	return err
}

// relayOnly reverts expect: the stream comes through the host alone.
func (a *resequencer) relayOnly(edge uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams[edge].from = nil
}

// streamed records the length of a stream, as its sender p says. With p nil the host has passed on
// the sender's message.
func (a *resequencer) streamed(p *peerLink, edge uint16, total uint64) error {
	a.mu.Lock()
	defer a.unlock()
	st, err := a.stream(edge)
	switch {
	case err != nil:
		return err
	case st.from == nil || (p != nil && p != st.from):
		return fmt.Errorf("%w: %s is said to have ended, which does not come from there", wire.ErrProtocol, a.ports[edge].Name)
	case total < st.next || (st.totalKnown && st.total != total):
		err := fmt.Errorf("%w: %s is said to have ended with %d deliveries, %d have come", wire.ErrProtocol, a.ports[edge].Name, total, st.next)
		if p != nil {
			return err
		}
		a.failInconsistent(edge, st, err)
		return nil
	}
	st.total, st.totalKnown = total, true
	if st.peerGone {
		a.failIfIncomplete(edge)
	}
	a.endCompleteStreams()
	return nil
}

// throughHost reports whether all streams have ended with a relayed delivery, and none had a direct
// one.
func (a *resequencer) throughHost() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.streams {
		if st := &a.streams[i]; !st.endedByDelivery || st.directCount > 0 {
			return false
		}
	}
	return true
}

// whenComplete is called when the host has ended the task or request: done is called after the
// deliveries that are still on their way have come.
func (a *resequencer) whenComplete(done func()) {
	a.mu.Lock()
	defer a.unlock()
	a.done = done
	a.endCompleteStreams()
}

// endCompleteStreams, with mu held, ends the streams that are complete, and has unlock call done
// when all are.
func (a *resequencer) endCompleteStreams() {
	if a.inconsistent {
		return
	}
	waits := false
	for i := range a.streams {
		st := &a.streams[i]
		switch {
		case st.ended:
		case st.totalKnown && st.next < st.total:
			waits = true
		case st.totalKnown || a.done != nil:
			a.endStream(i, st)
		}
	}
	if a.done != nil && !waits {
		a.doneDue, a.done = a.done, nil
	}
}

// unlock unlocks mu, runs the calls in afterUnlock, and calls done if it is due.
func (a *resequencer) unlock() {
	due, then := a.doneDue, a.afterUnlock
	a.doneDue, a.afterUnlock = nil, bus.AfterUnlock{}
	a.mu.Unlock()
	then.Run()
	if due != nil {
		due()
	}
}

// endStream, with mu held, ends a stream whose last delivery did not carry the end.
func (a *resequencer) endStream(edge int, st *incomingStream) {
	st.ended = true
	if !a.feedsEnd {
		return
	}
	a.req.Control().Feed(a.ports[edge], bus.EndOfStream(st.next), &a.afterUnlock)
}

// peerGone handles the loss of a node. A stream that waits for the node fails its request if the
// node lives, or if its length shows that deliveries are missing. Otherwise the host decides.
func (a *resequencer) peerGone(p *peerLink, died bool, cause error) {
	a.mu.Lock()
	defer a.unlock()
	for i := range a.streams {
		st := &a.streams[i]
		if st.from != p || st.ended {
			continue
		}
		st.peerGone = true
		switch {
		case !died:
			a.fail(uint16(i), cause)
		case st.totalKnown:
			a.failIfIncomplete(uint16(i))
		}
	}
	a.endCompleteStreams()
}

// failIfIncomplete, with mu held, fails the request if a delivery of a gone node can never come.
// Direct deliveries are the end of a stream: if the last direct one has come, the missing ones are
// relayed and may still come.
func (a *resequencer) failIfIncomplete(edge uint16) {
	st := &a.streams[edge]
	if st.next < st.total && (st.directCount == 0 || st.firstDirect+st.directCount < st.total) {
		a.fail(edge, fmt.Errorf("%w: %s had %d more deliveries to send", bus.ErrProcessDied, st.from.describe(), st.total-st.next))
	}
}

// fail, with mu held, has unlock fail the request on a stream.
func (a *resequencer) fail(edge uint16, err error) {
	a.afterUnlock.Fail(a.req, &bus.StageError{Edge: a.ports[edge].Name, Seq: a.streams[edge].next, Err: err})
}

// drop gives back the early deliveries, and later ones at once.
func (a *resequencer) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropped = true
	for i := range a.streams {
		st := &a.streams[i]
		for _, d := range st.early {
			d.Control().Discard()
		}
		st.early = nil
	}
}
