package bus

import (
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// packetTurn is the handling of one packet of a client's: what its messages cause for a request, at
// all processes that take part in it, is sent when all of them are handled. It is for the
// session's reader.
type packetTurn struct {
	sess     *session
	of       peer.Turn
	requests []*Request
}

// take has what a message causes wait for the end of the packet, if more messages are in it.
func (t *packetTurn) take(m wire.Message, more bool) {
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
	if !more && len(t.requests) == 0 {
		return // it is alone in its packet
	}
	t.sess.mu.Lock()
	src := t.sess.sources[source]
	t.sess.mu.Unlock()
	if src == nil {
		return
	}
	if out := src.out(); out != nil && out.req.turn.Load() != &t.of {
		t.of.Begin()
		out.req.turn.Store(&t.of)
		t.requests = append(t.requests, out.req)
	}
}

// end ends the packet.
func (t *packetTurn) end() {
	if len(t.requests) == 0 {
		return
	}
	for _, r := range t.requests {
		r.turn.CompareAndSwap(&t.of, nil)
	}
	clear(t.requests)
	t.requests = t.requests[:0]
	t.of.End()
}
