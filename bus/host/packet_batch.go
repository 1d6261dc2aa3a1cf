package host

import (
	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// packetBatch handles all packets of a client that have arrived as one batch. The messages that the
// batch causes for requests, at all processes that take part in them, are sent before the session waits
// for the next packet. Only the session's reader uses it.
type packetBatch struct {
	sess     *session
	batch    peer.PacketBatch
	note     bus.FlushBatch // refers to batch, at the requests
	requests []*bus.Request
	messages int
}

// maxBatch is how many messages a batch has at most, so that a client which sends without pause does
// not delay the messages that it causes.
const maxBatch = 64

// add delays the messages that m causes until the batch is flushed.
func (t *packetBatch) add(m wire.Message) {
	var source uint32
	switch m := m.(type) {
	case *wire.Put:
		source = m.Source
	case *wire.Ended:
		source = m.Task
	case *wire.CloseSend:
		source = m.Source
	default:
		return
	}
	src, _ := t.sess.sources.find(source)
	if src == nil {
		return
	}
	if t.messages++; t.messages > maxBatch {
		t.flush()
	}
	if req := src.request(); req != nil && req.Control().FlushBatch().Load() != &t.note {
		t.batch.Begin()
		req.Control().FlushBatch().Store(&t.note)
		t.requests = append(t.requests, req)
	}
}

// flush sends the delayed messages.
func (t *packetBatch) flush() {
	t.messages = 0
	if len(t.requests) == 0 {
		return
	}
	for _, r := range t.requests {
		r.Control().FlushBatch().CompareAndSwap(&t.note, nil)
	}
	clear(t.requests)
	t.requests = t.requests[:0]
	t.batch.End()
}
