package host

import (
	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// packetBatch is the handling of all packets of a client's that are there: what they cause for
// requests, at all processes that take part in them, is sent before the session waits for the
// next one. It is for the session's reader.
type packetBatch struct {
	sess     *session
	batch    peer.PacketBatch
	note     bus.FlushBatch // of, at the requests
	requests []*bus.Request
	messages int
}

// mostInTurn is how many messages a turn has at most, so that a client which sends without
// end does not hold up what it has caused.
const maxBatch = 64

// add has what a message causes wait for the end of the turn.
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

// flush sends what has waited.
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
