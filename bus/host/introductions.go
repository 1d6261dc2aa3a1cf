package host

import (
	"log/slog"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// introductions are the pairs of nodes that were introduced, and may exchange deliveries directly.
type introductions struct {
	mu    lockorder.Mutex[lockorder.Introduced] // comes after the lock of a remote stage
	peers map[*session]map[*session]bool        // by node: the nodes that it was introduced to
}

// introduce introduces two nodes to each other, unless it has done so. It reports false if that fails.
func (in *introductions) introduce(a, b *session) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case a.ctx.Err() != nil || b.ctx.Err() != nil: // a departing node must not be added again
		return false
	case in.peers[a][b]:
		return true
	}
	ends, err := peer.Sockets()
	if err != nil {
		a.srv.log.Warn("two processes cannot be introduced: the host goes on relaying between them", slog.Any("error", err))
		return false
	}
	in.note(a, b)
	in.note(b, a)
	faultpoint.Hit("host-introduces")
	a.queue(&wire.Introduce{Peer: b.node, PID: uint32(b.proc.PID()), Name: b.name, Side: 0}, ends[0], b.proc.FD())
	b.queue(&wire.Introduce{Peer: a.node, PID: uint32(a.proc.PID()), Name: a.name, Side: 1}, ends[1], a.proc.FD())
	process.CloseAll(ends[:]) // the nodes have their own copies
	return true
}

// note notes, with mu held, that a node was introduced to another.
func (in *introductions) note(node, to *session) {
	if in.peers == nil {
		in.peers = make(map[*session]map[*session]bool)
	}
	if in.peers[node] == nil {
		in.peers[node] = make(map[*session]bool)
	}
	in.peers[node][to] = true
}

// forget removes a node whose session has ended.
func (in *introductions) forget(s *session) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for peer := range in.peers[s] {
		delete(in.peers[peer], s)
	}
	delete(in.peers, s)
}
