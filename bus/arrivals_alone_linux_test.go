package bus

import (
	"bytes"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/duplex"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// knowsOfTheHost reports whether a task was told that the host is gone.
func (t *nodeTask) knowsOfTheHost() bool {
	t.in.mu.Lock()
	defer t.in.mu.Unlock()
	return t.in.alone
}

// alone is a node whose task has had one input through the host, and may get more
// from the hand. The function counts what was handled.
func alone(t *testing.T) (*attached, *hand, *nodeTask, func() int64) {
	t.Helper()
	var handled atomic.Int64
	a := attach(t, 8, func(t *Task, d *Delivery) error {
		handled.Add(1)
		return t.EmitBytes(bytes.Clone(d.Bytes()))
	})
	h := a.meetHand(t)
	h.listen()
	_, task := a.served(t, h)
	return a, h, task, handled.Load
}

// loseHost ends the host's life.
func (a *attached) loseHost(t *testing.T, task *nodeTask) {
	t.Helper()
	if err := a.server.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	<-a.link.done
	eventually(t, "the task knows that the host is gone", task.knowsOfTheHost)
}

// TestUnreadLaneOutlivesTheHost: what lies in a lane when the host dies is
// handled, also when nothing of its stream was read before.
func TestUnreadLaneOutlivesTheHost(t *testing.T) {
	a, h, task, handled := alone(t)
	// The node comes to the rest when it has the memory that the first is in.
	h.say(&wire.Deliver{Source: nowhere, Delivery: nowhere, Segment: 2, Size: 8, Codec: 1},
		small(task.id, 1, 1), small(task.id, 2, 2), &wire.Streamed{Source: task.id, Deliveries: 3})
	a.loseHost(t, task)
	mem, err := shmstore.NewSegment("hand", 1<<12)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mem.Close)
	if err := h.wire.Offer(2, mem); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the task ends", task.req.over)
	if n := handled(); n != 3 {
		t.Errorf("%d deliveries were handled, want 3", n)
	}
}

// TestEmptyLaneEndsWithTheHost: a stream of which nothing lies in the lane when the
// host dies ends with what came through the host.
func TestEmptyLaneEndsWithTheHost(t *testing.T) {
	a, h, task, handled := alone(t)
	h.handled() // and the node waits for more
	a.loseHost(t, task)
	eventually(t, "the task ends", task.req.over)
	if n := handled(); n != 1 {
		t.Errorf("%d deliveries were handled, want 1", n)
	}
}

// TestNotMetWithoutTheHost: a stream that is expected of a node which was not met
// when the host died ends when the two have met, or cannot.
func TestNotMetWithoutTheHost(t *testing.T) {
	for name, come := range map[string]func(*testing.T, *peer.Conn){
		"they meet": func(t *testing.T, conn *peer.Conn) {
			d, err := duplex.Meet(conn, handNode, 1, duplex.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(d.Close)
		},
		"they do not": func(_ *testing.T, conn *peer.Conn) { _ = conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			a := attach(t, 8, echo)
			conn := introduceTo(t, a.link, handNode, lasting(t))
			_, task := a.served(t, &hand{pair: &pair{node: handNode}})
			a.loseHost(t, task)
			if task.req.over() {
				t.Fatal("the task ended before the lane was read")
			}
			come(t, conn)
			eventually(t, "the task ends", task.req.over)
		})
	}
}

// TestLateWithoutTheHost: what comes past the host for a stream that has ended with
// it is given back.
func TestLateWithoutTheHost(t *testing.T) {
	a := newArrivalsAt(t)
	a.must(a.fromHost(0), a.expect(0, a.peer))
	a.hostGone(func() { close(a.over) })
	if a.isOver() {
		t.Fatal("the stream ended before the lane was read")
	}
	a.peer.emptied.Store(true)
	a.wasRead()
	if !a.isOver() {
		t.Fatal("the task waits for more")
	}
	a.must(a.fromPeer(1), a.streamed(0, 2))
	a.results(1)
	if got := a.node.finished(); !slices.Equal(got, []uint32{1}) {
		t.Errorf("%v were given back, want the one that was late", got)
	}
}
