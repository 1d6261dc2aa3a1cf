package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/lastactive"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// peerLink is this node and another one, as the host has introduced them:
// deliveries go from one to the other in shared memory, past the host. A node
// is a pair with itself for two stages of its own, and then has two of these.
type peerLink struct {
	link *link
	node uint32 // the peer's number
	name string
	proc *process.Process
	conn *peer.Conn

	met       atomic.Bool   // deliveries could go to the peer
	closeOnce sync.Once     // by this side
	ended     chan struct{} // nothing comes any more
	dropOnce  sync.Once     // of what the peer had
	goneOnce  sync.Once     // the link is told that the peer is gone, unless this side has closed the pair

	active  lastactive.Connection // at what it sends
	account accounts.Account      // what the peer has, and the memory that the two have told each other of

	reused reusedMessages // by the goroutine that receives

	mu               lockorder.Mutex[lockorder.Pair] // guards what follows; comes after the account's
	sender           *peer.Sender                    // nil: the two have not met, or the peer is gone
	err              error                           // why nothing goes to the peer any more
	waiting          []func()                        // for the two to meet
	gone             bool                            // parting is over
	emissionsStopped bool                            // nothing is emitted any more
}

// meetPeer makes a pair of what the host says of a peer. It owns the descriptors.
func (l *link) meetPeer(m *wire.Introduce, fds []int) error {
	conn, err := peer.Open(fds[0])
	if err != nil {
		process.CloseAll(fds[1:])
		return err
	}
	proc, err := process.Adopt(fds[1], int(m.PID))
	if err != nil {
		_ = conn.Close() // the peer notices
		return err
	}
	p := &peerLink{
		link: l, node: m.Peer, name: m.Name, proc: proc, conn: conn, ended: make(chan struct{}),
	}
	p.account.Open(p)
	if !l.peers.add(p, m.Peer == l.welcome.Node, m.Side == 1) {
		_ = conn.Close() // the peer notices
		_ = proc.Close()
		return nil
	}
	go p.run()
	return nil
}

// describe names the peer in errors.
func (p *peerLink) describe() string {
	if p.name == "" {
		return fmt.Sprintf("process %d", p.proc.PID())
	}
	return fmt.Sprintf("process %d (%s)", p.proc.PID(), p.name)
}

// backlogBytes is how much waits for a peer that does not read before it is given up. Its
// credit bounds a peer that keeps to the rules.
const backlogBytes = 64 << 20

// lastWords is how long it may take to send the last messages to a peer.
const flushTimeout = 100 * time.Millisecond

// run meets the peer and handles what it sends until it is gone.
func (p *peerLink) run() {
	in := peer.NewReceiver(p.conn)
	p.active.Poll = in.Poll
	sender, err := peer.NewSender(p.conn, peer.SenderOptions{BacklogBytes: backlogBytes, FlushTimeout: flushTimeout})
	alive := false
	if err == nil {
		alive, err = p.serve(in, sender)
	}
	_ = p.conn.Close()
	if sender != nil {
		_ = sender.Close() // the connection is closed: it waits for nothing
	}
	in.Close()
	p.handleDisconnect(err, alive)
}

// serve handles what the peer sends. The error says why nothing comes any more, and stayed
// whether the peer was there still: then it is what the peer did, or this side. One that was
// not met is waited for as if it were dying, for the host may be saying what comes from it.
func (p *peerLink) serve(in *peer.Receiver, sender *peer.Sender) (alive bool, err error) {
	own, fd, err := p.conn.ShareLane()
	if err == nil {
		err = sender.Queue(own, fd)
	}
	if err != nil && !isGone(err) { // of one that is gone, Serve finds the end
		return false, fmt.Errorf("meet a peer: %w", err)
	}
	defer p.proc.OnExit(p.conn.HangUp)() // a child of the peer's may keep its end open
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

// markMet lets deliveries go to the peer.
func (p *peerLink) markMet(sender *peer.Sender) {
	p.met.Store(true)
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
func (p *peerLink) whenMet(open func()) {
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

// handleDisconnect gives up the peer. A peer that stayed broke the rules; any other is mostly dying, and has
// a while for that: the error of the side that found the fault comes before that of the peer,
// which only sees a connection that ends.
func (p *peerLink) handleDisconnect(cause error, alive bool) {
	p.mu.Lock()
	p.err = fmt.Errorf("deliveries to %s: %w", p.describe(), cause)
	p.waiting = nil
	p.mu.Unlock()
	p.account.Close(true)
	close(p.ended)
	p.link.lastActive.Gone(&p.active)
	wait := hostnode.DeathGrace
	if alive {
		wait = 0
	}
	p.proc.Within(wait, func(died bool) {
		p.markGone(func() { p.link.peerGone(p, died, cause) })
	})
}

// markGone is called when the peer is gone, and when this side closes the pair: what the peer was
// the last to read is given back when it is dead.
func (p *peerLink) markGone(tell func()) {
	p.goneOnce.Do(func() {
		tell()
		if holds, _, _ := p.account.Sizes(); holds > 0 {
			p.proc.OnExit(p.drop)
		} else {
			p.drop() // a peer that has left with a goodbye has given all back, and may live for long
		}
		p.mu.Lock()
		p.gone = true
		p.mu.Unlock()
	})
	p.dropIfStopped()
}

// stopEmissions says that nothing is emitted any more, so that no room is used again: what the peer had is given
// back when it has left, also if it lives and reads on.
func (p *peerLink) stopEmissions() {
	p.mu.Lock()
	p.emissionsStopped = true
	p.mu.Unlock()
	p.dropIfStopped()
}

func (p *peerLink) dropIfStopped() {
	p.mu.Lock()
	due := p.gone && p.emissionsStopped
	p.mu.Unlock()
	if due {
		p.drop()
	}
}

// drop gives back what the peer had, and lets go of the peer's memory.
func (p *peerLink) drop() {
	p.dropOnce.Do(func() {
		p.mu.Lock()
		p.sender = nil // what the link remembers of it is little
		p.mu.Unlock()
		for _, seg := range p.account.Drop() {
			seg.Release()
		}
		_ = p.proc.Close() // a watch holds nothing that could be lost
	})
}

// giveBackAll takes what was sent for given back, now and later.
func (p *peerLink) giveBackAll() {
	p.account.Close(true)
	p.account.GiveBackAll(accounts.All)
}

// close ends the pair from this side, and returns when nothing comes any more and all is given
// back.
func (p *peerLink) close() {
	p.closeOnce.Do(func() {
		if sender := p.connection(); sender != nil {
			_ = sender.Close()
		}
		_ = p.conn.Close()
	})
	<-p.ended
	p.markGone(func() {})
	p.stopEmissions()
}

func (p *peerLink) connection() *peer.Sender {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sender
}
