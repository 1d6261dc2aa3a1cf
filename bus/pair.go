package bus

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
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

	read decoded // by the goroutine that receives

	mu      sync.Mutex   // guards what follows; comes after the account's
	sender  *peer.Sender // nil: the two have not met, or the peer is gone
	err     error        // why nothing goes to the peer any more
	waiting []func()     // for the two to meet
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
	}
	p.account.open(p)
	p.borrowed.Store(1)
	if !l.peers.add(p, m.Peer == l.welcome.Node, m.Side == 1) {
		_ = conn.Close() // the peer notices
		_ = proc.Close()
		return nil
	}
	go p.run()
	return nil
}

// describe names the peer in errors.
func (p *pair) describe() string {
	if p.name == "" {
		return fmt.Sprintf("process %d", p.proc.PID())
	}
	return fmt.Sprintf("process %d (%s)", p.proc.PID(), p.name)
}

// backlogBytes is how much waits for a peer that does not read before it is given up. Its
// credit bounds a peer that keeps to the rules.
const backlogBytes = 64 << 20

// lastWords is how long it may take to send the last messages to a peer.
const lastWords = 100 * time.Millisecond

// run meets the peer and handles what it sends until it is gone.
func (p *pair) run() {
	defer p.proc.Close() //nolint:errcheck // a watch holds nothing that could be lost
	in := peer.NewReceiver(p.conn)
	p.looks.look = in.Look
	sender, err := peer.NewSender(p.conn, peer.SenderOptions{BacklogBytes: backlogBytes, FlushTimeout: lastWords})
	stayed := false
	if err == nil {
		stayed, err = p.serve(in, sender)
	}
	_ = p.conn.Close()
	if sender != nil {
		_ = sender.Close() // the connection is closed: it waits for nothing
	}
	in.Close()
	p.end(err, stayed)
	for _, seg := range p.account.drop() {
		p.link.dropSegment(seg)
	}
	p.mu.Lock()
	p.sender = nil // what the link remembers of it is little
	p.mu.Unlock()
}

// serve handles what the peer sends. The error says why nothing comes any more, and stayed
// whether the peer was there still: then it is what the peer did, or this side. One that was
// not met is waited for as if it were dying, for the host may be saying what comes from it.
func (p *pair) serve(in *peer.Receiver, sender *peer.Sender) (stayed bool, err error) {
	own, fd, err := p.conn.ShareLane()
	if err == nil {
		err = sender.Queue(own, fd)
	}
	if err != nil && !isGone(err) { // of one that is gone, Serve finds the end
		return false, fmt.Errorf("meet a peer: %w", err)
	}
	served := make(chan struct{})
	go func() {
		select {
		case <-p.proc.Done():
			p.conn.HangUp() // a child of the peer's may keep its end open
		case <-served:
		}
	}()
	defer close(served)
	err = in.Serve(func(h wire.Header, body []byte, fds []int) error {
		return p.handle(sender, h, body, fds)
	})
	met, broken := p.connection() != nil, sender.Err()
	switch {
	case isGone(err):
		return false, err // this side has closed the pair
	case broken != nil && !isGone(broken):
		return met, broken
	case !errors.Is(err, io.EOF):
		return met, err
	case p.proc.Exited():
		return false, errors.New("it died")
	}
	return false, errors.New("it closed the connection")
}

// isGone reports whether an error of a Sender says that the peer, or this side, has closed
// the connection.
func isGone(err error) bool {
	return errors.Is(err, peer.ErrGone) || errors.Is(err, peer.ErrClosed) || errors.Is(err, net.ErrClosed)
}

// begin lets deliveries go to the peer.
func (p *pair) begin(sender *peer.Sender) {
	p.mu.Lock()
	p.sender = sender
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
	met := p.sender != nil && p.err == nil
	if p.sender == nil && p.err == nil {
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

// close ends the pair from this side, and waits until nothing comes any more.
func (p *pair) close() {
	p.closeOnce.Do(func() {
		close(p.closed)
		if sender := p.connection(); sender != nil {
			_ = sender.Close()
		}
		_ = p.conn.Close()
	})
	<-p.ended
}

func (p *pair) connection() *peer.Sender {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sender
}
