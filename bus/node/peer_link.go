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

// peerLink is the connection of this node to another node, which the host has introduced.
// Deliveries between the two take a direct path through shared memory. A node that is its own peer,
// for two of its stages, has two links with itself, one for each end.
type peerLink struct {
	link *link
	node uint32 // the number of the peer
	name string
	proc *process.Process
	conn *peer.Conn

	met       atomic.Bool   // the peer has sent its lane
	closeOnce sync.Once     // closes the connection from this side
	ended     chan struct{} // closed when no more messages are handled
	dropOnce  sync.Once     // guards drop
	goneOnce  sync.Once     // guards markGone

	active  lastactive.Connection // polls the peer's messages
	account accounts.Account      // the deliveries that the peer holds, and the segments that either side has announced

	reused reusedMessages // used by the receiving goroutine only

	mu               lockorder.Mutex[lockorder.PeerLink] // guards the fields below; taken after the account's lock
	sender           *peer.Sender                        // nil: the peer is not met yet, or was dropped
	err              error                               // why nothing can be sent to the peer
	waiting          []func()                            // calls for markMet
	gone             bool                                // markGone has run
	emissionsStopped bool                                // nothing is emitted any more
}

// meetPeer handles the message Introduce: it opens the link to a peer. It owns the descriptors.
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

// backlogBytes is how much may be queued for a peer that does not read before its link fails. The
// credit of the streams keeps a correct peer far below it.
const backlogBytes = 64 << 20

// flushTimeout is how long closing the link may take to send the queued messages.
const flushTimeout = 100 * time.Millisecond

// run exchanges lanes with the peer, and handles its messages until the connection ends.
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
		_ = sender.Close() // does not wait: the connection is closed
	}
	in.Close()
	p.handleDisconnect(err, alive)
}

// serve handles the peer's messages. The error is why the connection has ended. alive reports a
// fault of either side: the connection broke while the peer, which was met, still held its end. An
// unmet peer is treated as dying, since the host may still announce the lengths of its streams.
func (p *peerLink) serve(in *peer.Receiver, sender *peer.Sender) (alive bool, err error) {
	own, fd, err := p.conn.ShareLane()
	if err == nil {
		err = sender.Queue(own, fd)
	}
	if err != nil && !isGone(err) { // if the peer is gone, Serve returns the reason
		return false, fmt.Errorf("meet a peer: %w", err)
	}
	defer p.proc.OnExit(p.conn.HangUp)() // a child of the peer may keep the peer's end open
	err = in.Serve(func(h wire.Header, body []byte, fds []int) error {
		return p.handle(sender, h, body, fds)
	})
	met, broken := p.connection() != nil, sender.Err()
	switch {
	case isGone(err):
		return false, err // this side has closed the link
	case broken != nil && !isGone(broken):
		return met, broken
	case !errors.Is(err, io.EOF):
		return met, err
	case p.proc.Exited():
		return false, errors.New("it died")
	}
	return false, errors.New("it closed the connection")
}

// isGone reports whether a Sender's error says that the peer or this side has closed the
// connection.
func isGone(err error) bool {
	return errors.Is(err, peer.ErrGone) || errors.Is(err, peer.ErrClosed) || errors.Is(err, net.ErrClosed)
}

// markMet has deliveries go to the peer from now on.
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

// whenMet calls open when the peer is met; at once if it is.
func (p *peerLink) whenMet(open func()) {
	p.mu.Lock()
	met := p.sender != nil && p.err == nil
	if p.sender == nil && p.err == nil {
		p.waiting = append(p.waiting, open)
	}
	p.mu.Unlock()
	if met { // otherwise the host keeps relaying
		open()
	}
}

// handleDisconnect ends the link to a peer whose connection has ended. A peer that was alive broke
// the protocol, and its streams fail at once. Any other peer is mostly dying, and gets DeathGrace
// for that: the error of the side that found a fault takes precedence over the error of the peer,
// which only sees the connection end.
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
	p.proc.OnExitWithin(wait, func(died bool) {
		p.markGone(func() { p.link.peerGone(p, died, cause) })
	})
}

// markGone runs once, when the peer is gone or this side has closed the link. The deliveries that
// the peer holds are given back when the peer process is dead.
func (p *peerLink) markGone(tell func()) {
	p.goneOnce.Do(func() {
		tell()
		if holds, _, _ := p.account.Sizes(); holds > 0 {
			p.proc.OnExit(p.drop)
		} else {
			p.drop() // a peer that has closed its node holds nothing, and may live for long
		}
		p.mu.Lock()
		p.gone = true
		p.mu.Unlock()
	})
	p.dropIfStopped()
}

// stopEmissions records that nothing is emitted any more, so that no space is reused. From then on
// the peer's deliveries are given back as soon as the peer is gone, even if its process lives and
// reads on.
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

// drop gives back the deliveries that the peer holds, and releases the peer's segments.
func (p *peerLink) drop() {
	p.dropOnce.Do(func() {
		p.mu.Lock()
		p.sender = nil // frees the memory of the sender
		p.mu.Unlock()
		for _, seg := range p.account.Drop() {
			seg.Release()
		}
		_ = p.proc.Close() // closing a watch loses nothing
	})
}

// giveBackAll treats all deliveries to the peer as returned, and has later ones refused.
func (p *peerLink) giveBackAll() {
	p.account.Close(true)
	p.account.GiveBackAll(accounts.All)
}

// close ends the link from this side. It returns when no more messages are handled and all
// deliveries are given back.
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
