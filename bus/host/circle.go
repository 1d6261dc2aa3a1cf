package host

import (
	"log/slog"
	"sync"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// circle is what the host knows of nodes that exchange deliveries without it: who
// was introduced to whom, and, of one that is gone, who may still read what it
// had and passed on.
//
// A node owns memory, another passes a payload in it on to a third, and dies.
// The owner sees the death, and cannot see the third. The host can: it asks all
// who were introduced to the dead one, and, as a dead one says nothing, all who
// were introduced to those that are dead as well. The dead one may also have passed the
// payload to the host, which gave it to another node, which passed it on and died: then those
// who were introduced to that one are asked, too. When they have said that they read
// nothing from there any more, the owner may have its memory back.
type circle struct {
	mu        lockorder.Mutex[lockorder.Circle] // comes after a remote stage's
	nodes     map[uint32]*acquaintance
	releasing sync.WaitGroup // of those who give back what was lent; added to with mu held
}

// acquaintance is a node that was introduced to another.
type acquaintance struct {
	sess  *session
	who   Holding // names it
	uses  *uses   // of what it put
	peers map[*acquaintance]*clearance
	gone  bool          // and can read nothing any more
	lent  []ledger.Held // what the host gave to it, and it passed on
}

// clearance says of two nodes, seen from one that is gone, whether the other
// reads nothing any more that came from it.
type clearance struct{ said bool }

// introduce makes two nodes known to each other, unless they are. It reports
// false if that is not possible.
func (c *circle) introduce(a, b *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes == nil {
		c.nodes = make(map[uint32]*acquaintance)
	}
	if a.ctx.Err() != nil || b.ctx.Err() != nil { // one that leaves is not to come back in here
		return false
	}
	na, nb := c.node(a), c.node(b)
	if na.peers[nb] != nil {
		return true
	}
	ends, err := peer.Sockets()
	if err != nil {
		a.srv.log.Warn("two processes cannot be introduced: the host goes on relaying between them", slog.Any("error", err))
		return false
	}
	na.peers[nb], nb.peers[na] = new(clearance), new(clearance)
	faultpoint.Hit("host-introduces")
	a.queue(&wire.Introduce{Peer: b.node, PID: uint32(b.proc.PID()), Name: b.name, Side: 0}, ends[0], b.proc.FD())
	b.queue(&wire.Introduce{Peer: a.node, PID: uint32(a.proc.PID()), Name: a.name, Side: 1}, ends[1], a.proc.FD())
	process.CloseAll(ends[:]) // they have their own
	return true
}

// node, with mu held, finds or makes what is known of a node.
func (c *circle) node(s *session) *acquaintance {
	n := c.nodes[s.node]
	if n == nil {
		n = &acquaintance{sess: s, who: Holding{PID: s.proc.PID(), Name: s.name}, uses: &s.uses, peers: make(map[*acquaintance]*clearance)}
		c.nodes[s.node] = n
	}
	return n
}

// knows reports whether a node was introduced to another, and so may have payloads from there.
func (c *circle) knows(node uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[node] != nil
}

// clear is told by a node that it reads nothing any more that came from another
// one, which is gone.
func (c *circle) clear(from, of uint32) {
	c.mu.Lock()
	n, peer := c.nodes[from], c.nodes[of]
	if n != nil && peer != nil && peer.peers[n] != nil {
		peer.peers[n].said = true
	}
	c.mu.Unlock()
	c.settle()
}

// leave is called when a node is gone and can read nothing any more. What was lent
// to it is released when nobody else does either.
func (c *circle) leave(s *session, lent []ledger.Held) {
	c.mu.Lock()
	n := c.nodes[s.node]
	if n != nil {
		n.gone, n.lent = true, lent
		lent = nil
	}
	c.mu.Unlock()
	releaseAll(lent) // to nobody, so that nobody has it
	c.settle()
}

func releaseAll(all []ledger.Held) {
	for _, p := range all {
		p.Release()
	}
}

// settle tells of all nodes that are gone of whom nothing is read any more, and gives back what was lent to
// them. What comes back may be the last that the host kept of another node's, so it looks again.
func (c *circle) settle() {
	for lent := c.clearUnread(); len(lent) > 0; lent = c.clearUnread() {
		releaseAll(lent)
		c.releasing.Done()
	}
}

// clearUnread forgets the nodes of whom nothing is read any more, and returns what was lent to them. If that is
// anything, releasing counts the caller.
func (c *circle) clearUnread() (lent []ledger.Held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen, passed := make(map[*acquaintance]bool), c.passed()
	for _, n := range c.nodes {
		if !n.gone || seen[n] {
			continue
		}
		if group, unread := n.group(seen, passed); unread {
			for _, gone := range group {
				lent = append(lent, gone.lent...)
				c.drop(gone)
			}
		}
	}
	if len(lent) > 0 {
		c.releasing.Add(1)
	}
	return lent
}

// end gives back what is lent still, when all nodes are gone and the host closes, and
// returns when all of it is back. It does not matter any more who reads it: a host that
// closes reuses no memory.
func (c *circle) end() {
	c.mu.Lock()
	var lent []ledger.Held
	for _, n := range c.nodes {
		lent = append(lent, n.lent...)
	}
	c.nodes = nil
	c.mu.Unlock()
	releaseAll(lent)
	c.releasing.Wait()
}

// passage says of a node which payloads went by way of the host, to a node that is gone and that
// has passed them on: one entry for each.
type passage struct {
	to   []*acquaintance // those that this node put
	from []*acquaintance // those that this node, which is gone, was given
}

// passed finds, with mu held, the passages of all nodes.
func (c *circle) passed() map[*acquaintance]passage {
	by := make(map[ledger.Counter]*acquaintance)
	for _, n := range c.nodes {
		by[n.uses] = n
	}
	all := make(map[*acquaintance]passage)
	for _, n := range c.nodes {
		for _, p := range n.lent {
			if from := by[p.Counter()]; from != nil {
				all[from] = passage{append(all[from].to, n), all[from].from}
				all[n] = passage{all[n].to, append(all[n].from, from)}
			}
		}
	}
	return all
}

// group finds the nodes that are gone around one that is, and reports whether all
// who live and were introduced to one of them, and the host, have let go of what
// came from it.
func (n *acquaintance) group(seen map[*acquaintance]bool, passed map[*acquaintance]passage) (group []*acquaintance, unread bool) {
	unread = true
	group = []*acquaintance{n}
	seen[n] = true
	join := func(near *acquaintance) {
		if near.gone && !seen[near] {
			seen[near] = true
			group = append(group, near)
		}
	}
	for asked := 0; asked < len(group); { // which grows meanwhile
		gone := group[asked]
		asked++
		by := passed[gone]
		unread = unread && gone.uses.over(len(by.to))
		for peer, c := range gone.peers {
			unread = unread && (c.said || peer.gone)
			join(peer)
		}
		for _, near := range by.to {
			join(near)
		}
		for _, near := range by.from {
			join(near)
		}
	}
	return group, unread
}

// holdings lists what nodes that are gone had passed on, by those that may read it and have not said that they do
// not; if there are none of these, by the node that is gone: others around it have yet to say so.
func (c *circle) holdings() (all []Holding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if len(n.lent) == 0 {
			continue
		}
		var readers []Holding
		for peer, c := range n.peers {
			if !c.said && !peer.gone {
				readers = append(readers, peer.who)
			}
		}
		if readers == nil {
			readers = []Holding{n.who}
		}
		for _, h := range readers {
			h.Together, h.Payloads = "passed", len(n.lent)
			all = append(all, h)
		}
	}
	return all
}

// drop, with mu held, forgets a node of whom nothing is read any more.
func (c *circle) drop(n *acquaintance) {
	for peer := range n.peers {
		if !peer.gone {
			peer.sess.queue(&wire.Cleared{Peer: n.sess.node})
		}
		delete(peer.peers, n)
	}
	delete(c.nodes, n.sess.node)
}
