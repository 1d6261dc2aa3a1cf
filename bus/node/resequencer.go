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

// resequencer are the streams that come to a task of this process, or to a request
// that it submitted, from others. A stream may come on two ways, its beginning
// through the host and the rest from another node: here it is one again.
type resequencer struct {
	req   *bus.Request
	ports []bus.Port
	// closes has the end of a stream fed too, as a bare delivery.
	closes bool

	mu      lockorder.Mutex[lockorder.Arrivals] // taken before the locks of flows
	streams []arriving
	one     [1]arriving // backs streams where there is but one
	done    func()      // once all has come that is to come; nil: the host has not said that it is over
	due     func()      // done, when it is to be called, without mu
	then    bus.AfterUnlock
	dropped bool // nothing more is wanted
	belied  bool // the request fails, also if the host completes it
}

// arriving is one stream.
type arriving struct {
	next  uint64          // the sequence behind the last delivery handed on
	early []*bus.Delivery // those that overtook others, by sequence
	total uint64          // how long it is, when that is known
	known bool
	ended bool // the end was handed on
	last  bool // ... with the last delivery

	from    *peerLink    // who may send besides the host; nil: nobody
	lost    bool         // ... and is gone
	first   uint64       // the sequence of the first delivery that came from there
	directs uint64       // how many came
	open    atomic.Int64 // of those, not finished
	relayed atomic.Int64 // that came through the host, and are not finished
}

// begin makes a ready for the streams of the ports.
func (a *resequencer) begin(req *bus.Request, ports []bus.Port, closes bool) *resequencer {
	a.req, a.ports, a.closes = req, ports, closes
	if a.streams = a.one[:]; len(ports) != 1 {
		a.streams = make([]arriving, len(ports))
	}
	return a
}

// stream, with mu held, finds a stream by what a message calls it.
func (a *resequencer) stream(edge uint16) (*arriving, error) {
	if int(edge) >= len(a.streams) {
		return nil, fmt.Errorf("%w: edge %d of %d", wire.ErrProtocol, edge, len(a.streams))
	}
	return &a.streams[edge], nil
}

// relayed takes in a delivery that came through the host.
func (a *resequencer) relayed(edge uint16, d *bus.Delivery) error {
	a.mu.Lock()
	defer a.unlock()
	st, err := a.stream(edge)
	if err != nil {
		d.Control().Discard()
		return err
	}
	st.relayed.Add(1)
	d.Control().CountUnfinished(&st.relayed)
	if st.from == nil { // in order already, or in none: see Routing
		a.feed(int(edge), st, d)
		return nil
	}
	err = a.sort(int(edge), st, d)
	if err == nil || st.directs == 0 {
		return err
	}
	a.lied(edge, st, err)
	return nil
}

// lied, with mu held, fails the request, and gives up who sends to it, when that
// says one thing here and another to the host.
func (a *resequencer) lied(edge uint16, st *arriving, err error) {
	a.belied = true
	err = fmt.Errorf("deliveries from %s: %w", st.from.describe(), err)
	a.fail(edge, err)
	if sender := st.from.connection(); sender != nil {
		sender.Fail(err)
	}
}

// direct takes in a delivery that came from another node.
func (a *resequencer) direct(p *peerLink, edge uint16, d *bus.Delivery) error {
	a.mu.Lock()
	defer a.unlock()
	st, err := a.stream(edge)
	switch {
	case err != nil:
	case st.from != p:
		err = fmt.Errorf("%w: a delivery on %s, which is not expected from there", wire.ErrProtocol, a.ports[edge].Name)
	case uint64(st.open.Load()) >= a.ports[edge].Limit:
		err = fmt.Errorf("%w: %d deliveries on %s are not finished, more than its window", wire.ErrProtocol, st.open.Load(), a.ports[edge].Name)
	}
	if err != nil {
		d.Control().Discard()
		return err
	}
	if st.directs == 0 {
		st.first = d.Seq
	}
	st.directs++
	st.open.Add(1)
	d.Control().CountUnfinished(&st.open)
	return a.sort(int(edge), st, d)
}

// sort, with mu held, hands a delivery on when it is its turn, and those that
// waited for it.
func (a *resequencer) sort(edge int, st *arriving, d *bus.Delivery) error {
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
	a.settle()
	return nil
}

// feed, with mu held, hands a delivery on.
func (a *resequencer) feed(edge int, st *arriving, d *bus.Delivery) {
	st.next = d.Seq + 1
	if d.EOS {
		st.ended, st.last = true, true
	}
	a.req.Control().Feed(a.ports[edge], d, &a.then)
}

// expect has deliveries of a stream come from another node from now on.
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

// forsake has a stream that was to come from another node come through the host alone.
func (a *resequencer) forsake(edge uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams[edge].from = nil
}

// streamed says how long a stream is, as a node says or, with none, the host,
// which has it from whoever sends.
func (a *resequencer) streamed(p *peerLink, edge uint16, total uint64) error {
	a.mu.Lock()
	defer a.unlock()
	st, err := a.stream(edge)
	switch {
	case err != nil:
		return err
	case st.from == nil || (p != nil && p != st.from):
		return fmt.Errorf("%w: %s is said to have ended, which does not come from there", wire.ErrProtocol, a.ports[edge].Name)
	case total < st.next || (st.known && st.total != total):
		err := fmt.Errorf("%w: %s is said to have ended with %d deliveries, %d have come", wire.ErrProtocol, a.ports[edge].Name, total, st.next)
		if p != nil {
			return err
		}
		a.lied(edge, st, err)
		return nil
	}
	st.total, st.known = total, true
	if st.lost {
		a.lack(edge)
	}
	a.settle()
	return nil
}

// throughHost reports whether all streams have ended with a delivery that came through the
// host, and nothing of them on another way.
func (a *resequencer) throughHost() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.streams {
		if st := &a.streams[i]; !st.last || st.directs > 0 {
			return false
		}
	}
	return true
}

// over says that the host has no more to say: done is called when all has come
// that is on its way.
func (a *resequencer) over(done func()) {
	a.mu.Lock()
	defer a.unlock()
	a.done = done
	a.settle()
}

// settle, with mu held, ends the streams that are complete, and calls done when
// all are.
func (a *resequencer) settle() {
	if a.belied {
		return
	}
	waits := false
	for i := range a.streams {
		st := &a.streams[i]
		switch {
		case st.ended:
		case st.known && st.next < st.total:
			waits = true
		case st.known || a.done != nil:
			a.end(i, st)
		}
	}
	if a.done != nil && !waits {
		a.due, a.done = a.done, nil
	}
}

// unlock lets mu go, does what was left for that, and calls done if that is due.
func (a *resequencer) unlock() {
	due, then := a.due, a.then
	a.due, a.then = nil, bus.AfterUnlock{}
	a.mu.Unlock()
	then.Run()
	if due != nil {
		due()
	}
}

// end, with mu held, ends a stream whose last delivery did not.
func (a *resequencer) end(edge int, st *arriving) {
	st.ended = true
	if !a.closes {
		return
	}
	a.req.Control().Feed(a.ports[edge], bus.EndOfStream(st.next), &a.then)
}

// peerGone says that nothing comes from a node any more. If it lives, or had
// more to send, the request cannot go on; if not, it is for the host to say.
func (a *resequencer) peerGone(p *peerLink, died bool, cause error) {
	a.mu.Lock()
	defer a.unlock()
	for i := range a.streams {
		st := &a.streams[i]
		if st.from != p || st.ended {
			continue
		}
		st.lost = true
		switch {
		case !died:
			a.fail(uint16(i), cause)
		case st.known:
			a.lack(uint16(i))
		}
	}
	a.settle()
}

// lack, with mu held, fails the request if a delivery will never come: what went
// past the host ends the stream, and what did not may still be on its way.
func (a *resequencer) lack(edge uint16) {
	st := &a.streams[edge]
	if st.next < st.total && (st.directs == 0 || st.first+st.directs < st.total) {
		a.fail(edge, fmt.Errorf("%w: %s had %d more deliveries to send", bus.ErrProcessDied, st.from.describe(), st.total-st.next))
	}
}

// fail, with mu held, has the request fail on a stream when mu is let go.
func (a *resequencer) fail(edge uint16, err error) {
	a.then.Fail(a.req, &bus.StageError{Edge: a.ports[edge].Name, Seq: a.streams[edge].next, Err: err})
}

// drop gives back what waits for its turn in vain.
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
