package peer

import (
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

const (
	// DefaultBacklogBytes is how many bytes a Sender queues for a peer that does
	// not read.
	DefaultBacklogBytes = 8 << 20
	// DefaultFlushTimeout is how long Close of a Sender tries to send its queue.
	DefaultFlushTimeout = 2 * time.Second

	// maxBacklogDescriptors bounds the descriptors that wait in a Sender: the
	// system limits the open descriptors of a process.
	maxBacklogDescriptors = 256
)

// QueueLaterDelay is how long a message of QueueLater waits for another to be sent with. A change
// affects Senders that are made afterwards; only tests change it.
var QueueLaterDelay = time.Millisecond

// SenderOptions are the options of [NewSender]. The zero value works.
type SenderOptions struct {
	// BacklogBytes bounds the queue for a peer that does not read, in bytes. Zero
	// means DefaultBacklogBytes; at least a packet must fit.
	BacklogBytes int
	// FlushTimeout is how long Close tries to send the queue. Zero means
	// DefaultFlushTimeout.
	FlushTimeout time.Duration
}

func (o SenderOptions) withDefaults() SenderOptions {
	if o.BacklogBytes == 0 {
		o.BacklogBytes = DefaultBacklogBytes
	}
	if o.FlushTimeout == 0 {
		o.FlushTimeout = DefaultFlushTimeout
	}
	return o
}

// Validate reports the first invalid option.
func (o SenderOptions) Validate() error {
	if o.BacklogBytes != 0 && o.BacklogBytes < wire.MaxPacket {
		return fmt.Errorf("backlog of %d bytes: a packet of %d must fit", o.BacklogBytes, wire.MaxPacket)
	}
	if o.FlushTimeout < 0 {
		return fmt.Errorf("flush timeout %v: it must not be negative", o.FlushTimeout)
	}
	return nil
}
