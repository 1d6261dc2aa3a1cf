package peer

import (
	"slices"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// PacketBatch is the handling of the packets that are there: what they cause is sent when all of
// their messages are handled, in as few packets as possible. The zero Turn is over.
//
// Its methods are safe for concurrent use: a message that another goroutine queues in the
// meantime travels with the others.
type PacketBatch struct {
	mu      lockorder.Mutex[lockorder.PacketBatch]
	on      bool
	senders []*Sender // that wait for the end
}

// Begin begins the turn.
func (t *PacketBatch) Begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on = true
}

// Hold has what is queued with a Sender from now on wait for the end of the turn, unless
// the turn is over.
func (t *PacketBatch) Hold(s *Sender) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.on && !slices.Contains(t.senders, s) {
		t.senders = append(t.senders, s)
		s.hold(1)
	}
}

// End sends what has waited.
func (t *PacketBatch) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on = false
	for _, s := range t.senders {
		s.hold(-1)
	}
	clear(t.senders)
	t.senders = t.senders[:0]
}

// hold has messages wait until as many turns have ended as have begun.
func (s *Sender) hold(turns int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held += turns; s.held == 0 && !s.resting {
		s.flushLocked()
	}
}
