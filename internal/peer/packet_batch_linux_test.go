package peer

import (
	"os"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

func queue(t *testing.T, s *Sender, from, to uint32) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := s.Queue(&wire.Release{Delivery: i}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPacketBatch: the messages of a batch are sent in one packet, after messages that were delayed
// before, when the last batch of the Sender has ended.
func TestPacketBatch(t *testing.T) {
	s, peer := delayedSender(t)
	var a, b PacketBatch
	a.Add(s) // no effect before Begin
	queue(t, s, 0, 1)
	wantPacket(t, peer, 0, 1)

	queueLater(t, s, 1, 2)
	a.Begin()
	b.Begin()
	a.Add(s)
	a.Add(s)
	b.Add(s)
	queue(t, s, 2, 4)
	a.End()
	wantSilence(t, peer)
	queue(t, s, 4, 5)
	b.End()
	wantPacket(t, peer, 1, 5)

	a.Begin() // again, without messages
	a.Add(s)
	queueLater(t, s, 5, 6)
	a.End()
	wantSilence(t, peer)
	queue(t, s, 6, 7)
	wantPacket(t, peer, 5, 7)
}

// TestPacketBatchAndClose: a Sender that is closed during a batch sends its queue.
func TestPacketBatchAndClose(t *testing.T) {
	s, peer := delayedSender(t)
	var a PacketBatch
	a.Begin()
	a.Add(s)
	queue(t, s, 0, 3)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantPacket(t, peer, 0, 3)
	a.End()
}

// TestPacketBatchWithDescriptors: messages with descriptors do not wait for the end of a batch, nor do
// messages queued before them: a batch may have more descriptors than a process can keep.
func TestPacketBatchWithDescriptors(t *testing.T) {
	s, _ := delayedSender(t)
	var a PacketBatch
	a.Begin()
	a.Add(s)
	queue(t, s, 0, 1)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for range 3 {
		if err := s.Queue(&wire.Segment{}, int(null.Fd())); err != nil {
			t.Fatal(err)
		}
	}
	if n := backlog(s); n != 0 {
		t.Errorf("%d bytes wait", n)
	}
	queue(t, s, 1, 2)
	if n := backlog(s); n == 0 {
		t.Error("messages behind the descriptors did not wait")
	}
	a.End()
}
