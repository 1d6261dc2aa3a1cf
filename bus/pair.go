package bus

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/duplex"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// pair is this node and another one, as the host has introduced them:
// deliveries go from one to the other in shared memory, past the host. A node
// is a pair with itself for two stages of its own, and then has two of these.
type pair struct {
	link *link
	node uint32 // the peer's number
	name string
	proc *peer.Process
	conn *peer.Conn

	closed    chan struct{} // this side ends it
	closeOnce sync.Once
	ended     chan struct{} // nothing comes any more
	cleared   chan struct{} // nobody reads any more what was lent to the peer
	clearOnce sync.Once
	borrowed  atomic.Int64 // payloads that it gave, and 1 until nothing comes any more

	looks   looking // at what it sends
	account account // what the peer has, and the memory that the two have told each other of

	mu      sync.Mutex // guards what follows; comes after the account's
	duplex  *duplex.Duplex
	err     error         // why nothing goes to the peer any more
	waiting []func()      // for the two to meet
	come    chan struct{} // closed, and replaced, when a segment has come
}

// meet makes a pair of what the host says of a peer. It owns the descriptors.
func (l *link) meet(m *wire.Introduce, fds []int) error {
	conn, err := peer.Open(fds[0])
	if err != nil {
		peer.CloseAll(fds[1:])
		return err
	}
	proc, err := peer.Adopt(fds[1], int(m.PID))
	if err != nil {
		_ = conn.Close() // the peer notices
		return err
	}
	p := &pair{
		link: l, node: m.Peer, name: m.Name, proc: proc, conn: conn, closed: make(chan struct{}), ended: make(chan struct{}), cleared: make(chan struct{}),
		come: make(chan struct{}),
	}
	p.account.open(p)
	p.borrowed.Store(1)
	if !l.peers.add(p, m.Peer == l.welcome.Node, m.Side == 1) {
		p.close()
		_ = proc.Close() // nobody has seen it
		return nil
	}
	go p.run(m.Lane, m.Side)
	return nil
}

// describe names the peer in errors.
func (p *pair) describe() string {
	if p.name == "" {
		return fmt.Sprintf("process %d", p.proc.PID())
	}
	return fmt.Sprintf("process %d (%s)", p.proc.PID(), p.name)
}

// run meets the peer and handles what it sends until it is gone.
func (p *pair) run(id uint64, side uint8) {
	defer p.proc.Close() //nolint:errcheck // a watch holds nothing that could be lost
	d, err := duplex.Meet(p.conn, id, side, duplex.Options{Lane: p.link.wait.lane()})
	if err == nil {
		p.begin(d)
		stop := make(chan struct{})
		go func() {
			select {
			case <-p.proc.Done():
				d.PeerGone(errors.New("it died"))
			case <-stop:
			}
		}()
		err = d.Run(p)
		close(stop)
	}
	p.end(err, d != nil && d.Stayed())
	if d != nil {
		d.Close()
	}
	for _, seg := range p.account.drop() {
		p.link.dropSegment(seg)
	}
	p.mu.Lock()
	p.duplex = nil // what the link remembers of it is little
	p.mu.Unlock()
}

// begin lets deliveries go to the peer.
func (p *pair) begin(d *duplex.Duplex) {
	p.mu.Lock()
	p.duplex = d
	p.looks.look = d.Look
	waiting := p.waiting
	p.waiting = nil
	p.mu.Unlock()
	for _, open := range waiting {
		open()
	}
}

// whenMet calls open as soon as something can be sent to the peer.
func (p *pair) whenMet(open func()) {
	p.mu.Lock()
	met := p.duplex != nil && p.err == nil
	if p.duplex == nil && p.err == nil {
		p.waiting = append(p.waiting, open)
	}
	p.mu.Unlock()
	if met { // without, the host goes on relaying
		open()
	}
}

// end gives up the peer, and waits until it can read nothing of ours any more. One that
// stayed broke the rules.
func (p *pair) end(cause error, stayed bool) {
	p.mu.Lock()
	p.err = fmt.Errorf("deliveries to %s: %w", p.describe(), cause)
	p.waiting = nil
	p.mu.Unlock()
	p.account.close(true, true)
	close(p.ended)
	p.link.heard.gone(&p.looks)
	p.unborrow() // what is here already is still counted
	died, closed := p.awaitDeath(stayed)
	if !closed {
		p.link.peerGone(p, died, cause)
	}
	dead := p.proc.Done()
	for died || !closed {
		if died { // what it has passed on may be read by others
			p.account.giveBack(func(h *hold) bool { return !h.lent })
			dead = nil
		}
		select {
		case <-dead:
			died = true
			continue
		case <-p.cleared:
		case <-p.link.idled: // there is nobody to say so, and nothing is emitted any more
		case <-p.closed:
		}
		break
	}
	p.account.giveBack(everything)
}

// awaitDeath reports whether the peer is dead, or this side has closed the
// pair. For one that stayed it does not wait: the error of whoever found the fault comes
// before that of the peer, which only sees a connection that ends.
func (p *pair) awaitDeath(stayed bool) (died, closed bool) {
	wait := deathGrace
	if stayed {
		wait = 0
	}
	grace := time.NewTimer(wait)
	defer grace.Stop()
	select {
	case <-p.proc.Done():
		return true, false
	case <-p.closed:
		return p.proc.Exited(), true
	case <-grace.C:
		return p.proc.Exited(), false
	}
}

// leave takes what was sent for given back, now and later.
func (p *pair) leave() {
	p.account.close(true, true)
	p.account.giveBack(everything)
}

// close ends the pair from this side.
func (p *pair) close() {
	p.closeOnce.Do(func() {
		close(p.closed)
		p.mu.Lock()
		d := p.duplex
		p.mu.Unlock()
		if d != nil {
			d.Close()
		}
		_ = p.conn.Close() // ends a meeting that has not come about
	})
}

// maxPeerSegments bounds the segments of a peer that are known: its stores', and
// those that payloads have of their own.
const maxPeerSegments = 4096

// Segment implements duplex.Handler.
func (p *pair) Segment(number uint32, mem *shmstore.Segment) error {
	if !p.account.show(number, newLasting(mem), maxPeerSegments) {
		mem.Close()
		return fmt.Errorf("%w: segment %d came before, or is one of more than %d", wire.ErrProtocol, number, maxPeerSegments)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.come)
	p.come = make(chan struct{})
	return nil
}

// Forget implements duplex.Handler.
func (p *pair) Forget(number uint32) {
	if seg := p.account.hide(number); seg != nil {
		p.link.dropSegment(seg)
	}
}
