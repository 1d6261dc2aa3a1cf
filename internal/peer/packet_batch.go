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
func (b *PacketBatch) Begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on = true
}

// Add has what is queued with a Sender from now on wait for the end of the turn, unless
// the turn is over.
func (b *PacketBatch) Add(s *Sender) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.on && !slices.Contains(b.senders, s) {
		b.senders = append(b.senders, s)
		s.addBatches(1)
	}
}

// End sends what has waited.
func (b *PacketBatch) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on = false
	for _, s := range b.senders {
		s.addBatches(-1)
	}
	clear(b.senders)
	b.senders = b.senders[:0]
}

// addBatches has messages wait until as many turns have ended as have begun.
func (s *Sender) addBatches(batches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.batches += batches; s.batches == 0 && !s.delayed {
		s.flushLocked()
	}
}
