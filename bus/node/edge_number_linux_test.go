package node

import (
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestEdgeNumberOfTheHost: an edge number equal to the number of edges breaks the protocol, and so
// does a stage number equal to the number of stages.
func TestEdgeNumberOfTheHost(t *testing.T) {
	a := attach(t, 8, echo)
	h := a.meetTestPeer(t)
	h.listen()
	_, rr := a.submitExpecting(t, h)
	for name, m := range map[string]wire.Message{
		"a delivery":                      &wire.Deliver{Source: rr.source, Edge: 1, Flags: wire.FlagInline},
		"deliveries that come from peers": &wire.Expect{Source: rr.source, Edge: 1, Peer: h.node},
		"deliveries that go to peers":     &wire.Direct{Source: rr.source, Edge: 1, Peer: h.node},
		"the end of a stream":             &wire.Streamed{Source: rr.source, Edge: 1},
		"a task":                          &wire.Open{Task: unknownSource, Stage: uint32(len(a.link.work.servedStages()))},
	} {
		if err := a.link.handle(m, nil); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("%s: %v, want %v", name, err, wire.ErrProtocol)
		}
	}
}

// TestEdgeNumberOfAPeer: an edge number equal to the number of edges ends the connection to the
// peer.
func TestEdgeNumberOfAPeer(t *testing.T) {
	for name, say := range map[string]func(source uint32) wire.Message{
		"a delivery": func(source uint32) wire.Message {
			m := small(source, 1, 1)
			m.Edge = 1
			return m
		},
		"the end of a stream": func(source uint32) wire.Message { return &wire.Streamed{Source: source, Edge: 1} },
	} {
		t.Run(name, func(t *testing.T) {
			a := attach(t, 8, echo)
			h := a.meetTestPeer(t)
			h.listen()
			_, rr := a.submitExpecting(t, h)
			h.sendMessages(say(rr.source))
			<-h.peerLink.ended
			h.mu.Lock()
			err := h.peerLink.err
			h.mu.Unlock()
			if !errors.Is(err, wire.ErrProtocol) {
				t.Errorf("the connection ended with %v, want %v", err, wire.ErrProtocol)
			}
		})
	}
}
