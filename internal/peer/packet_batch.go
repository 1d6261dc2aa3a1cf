package peer

import (
	"slices"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// PacketBatch spans the handling of the packets that have arrived: messages that the handlers queue
// are sent when all of these packets are handled, in as few packets as possible. The zero value is
// a batch that has ended.
//
// Its methods are safe for concurrent use: a message that another goroutine queues in the
// meantime travels with the others.
type PacketBatch struct {
	mu      lockorder.Mutex[lockorder.PacketBatch]
	on      bool
	senders []*Sender // wait for the end
}

// Begin begins the batch.
func (b *PacketBatch) Begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on = true
}

// Add makes messages that are queued with s from now on wait for the end of the batch, unless
// the batch has ended.
func (b *PacketBatch) Add(s *Sender) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.on && !slices.Contains(b.senders, s) {
		b.senders = append(b.senders, s)
		s.addBatches(1)
	}
}

// End ends the batch and sends the messages that have waited.
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

// addBatches counts batches that begin, or end if negative. Messages wait while the count is not 0.
func (s *Sender) addBatches(batches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.batches += batches; s.batches == 0 && !s.delayed {
		s.flushLocked()
	}
}
