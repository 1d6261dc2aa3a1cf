package bus

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
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
// from the hand, which speaks a version. The function counts what was handled.
func alone(t *testing.T, version uint16) (*attached, *hand, *nodeTask, func() int64) {
	t.Helper()
	var handled atomic.Int64
	a := attach(t, 8, func(t *Task, d *Delivery) error {
		handled.Add(1)
		return t.EmitBytes(bytes.Clone(d.Bytes()))
	})
	h := a.meetHandOf(t, version)
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
	Await(t, task.knowsOfTheHost)
}

// TestUnreadLaneOutlivesTheHost: what lies in a lane when the host dies is
// handled, also when nothing of its stream was read before.
func TestUnreadLaneOutlivesTheHost(t *testing.T) {
	for _, version := range []uint16{wire.KindAwait.Since() - 1, wire.Version} {
		t.Run(fmt.Sprint("version ", version), func(t *testing.T) { testUnreadLane(t, version) })
	}
}

func testUnreadLane(t *testing.T, version uint16) {
	a, h, task, handled := alone(t, version)
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
	Await(t, task.req.over)
	if n := handled(); n != 3 {
		t.Errorf("%d deliveries were handled, want 3", n)
	}
}

// TestEmptyLaneEndsWithTheHost: a stream that comes from a peer which does not say
// what becomes of it, and of which nothing lies in the lane when the host dies, ends
// with what came through the host.
func TestEmptyLaneEndsWithTheHost(t *testing.T) {
	a, h, task, handled := alone(t, wire.KindAwait.Since()-1)
	h.handled() // and the node waits for more
	a.loseHost(t, task)
	Await(t, task.req.over)
	if n := handled(); n != 1 {
		t.Errorf("%d deliveries were handled, want 1", n)
	}
}

// awaiting is an alone node whose host is gone, and that has asked the hand for the
// rest of the stream.
func awaiting(t *testing.T) (*hand, *nodeTask, func() int64) {
	t.Helper()
	a, h, task, handled := alone(t, wire.Version)
	h.handled()
	a.loseHost(t, task)
	if m := said[*wire.Await](h); *m != (wire.Await{Source: task.id}) {
		t.Fatalf("the node asks for %+v, want edge 0 of task %d", m, task.id)
	}
	return h, task, handled
}

// TestStreamGoesOnWithoutTheHost: a stream of which nothing had come past the host
// when that died is awaited to its end.
func TestStreamGoesOnWithoutTheHost(t *testing.T) {
	h, task, handled := awaiting(t)
	h.handled()
	if task.req.over() {
		t.Fatal("the task ended before it was known whether the stream goes on")
	}
	h.say(small(task.id, 1, 1), small(task.id, 2, 2), &wire.Streamed{Source: task.id, Deliveries: 3})
	Await(t, task.req.over)
	if n := handled(); n != 3 || task.req.Outcome() != Completed {
		t.Errorf("%d deliveries were handled, and the task is %v; want 3, completed", n, task.req.Outcome())
	}
}

// TestCutWithoutTheHost: a stream of which nothing comes past the host ends with
// what came through it; one of which something did fails its task.
func TestCutWithoutTheHost(t *testing.T) {
	for past, want := range map[int]Outcome{0: Completed, 2: Failed} {
		t.Run(fmt.Sprint(past, " past the host"), func(t *testing.T) {
			h, task, handled := awaiting(t)
			for i := range past {
				h.say(small(task.id, uint32(i+1), uint64(i+1)))
				said[*wire.Finish](h)
			}
			h.say(&wire.Cut{Source: task.id})
			Await(t, task.req.over)
			if n, got := handled(), task.req.Outcome(); n != int64(past+1) || got != want {
				t.Errorf("%d deliveries were handled, and the task is %v; want %d, %v", n, got, past+1, want)
			}
			if err := task.req.Err(); want == Failed && !errors.Is(err, ErrHostGone) {
				t.Errorf("the task failed with %v, want %v", err, ErrHostGone)
			}
		})
	}
}

// TestLostWithTheHost: what the host had not relayed of a stream whose length is
// known is not waited for.
func TestLostWithTheHost(t *testing.T) {
	h, task, _ := awaiting(t)
	h.say(&wire.Streamed{Source: task.id, Deliveries: 3})
	Await(t, task.req.over)
	if err := task.req.Err(); task.req.Outcome() != Failed || !errors.Is(err, ErrHostGone) {
		t.Errorf("the task is %v with %v, want failed with %v", task.req.Outcome(), err, ErrHostGone)
	}
}

// TestCutOfAnother: a peer that cuts a stream which does not come from it breaks
// the protocol.
func TestCutOfAnother(t *testing.T) {
	a := newArrivalsAt(t)
	a.refused(a.cut(a.peer, 0), "a stream of nobody's is cut")
	a.refused(a.cut(a.peer, 1), "an edge is cut that there is none of")
	a.must(a.expect(0, a.peer))
	a.refused(a.cut(&pair{node: 8}, 0), "a stream of another's is cut")
	a.must(a.cut(a.peer, 0), a.fromHost(0))
	a.end()
	a.results(1)
}

// TestAwaitIsAnswered: a peer that has lost the host learns of each stream that it
// asks for whether it goes on, and how it ends.
func TestAwaitIsAnswered(t *testing.T) {
	fails := errors.New("enough")
	for name, tt := range map[string]struct {
		outputs int   // past the host
		end     error // of the task
		late    bool  // it asks when the stream is over
		want    wire.Message
	}{
		"it ends":                     {outputs: 1, want: &wire.Streamed{Source: 77, Deliveries: 2, Bytes: 1}},
		"it ends, and nothing went":   {want: &wire.Streamed{Source: 77, Deliveries: 1}},
		"it is cut":                   {outputs: 1, end: fails, want: &wire.Cut{Source: 77}},
		"it is cut, and nothing went": {end: fails, want: &wire.Cut{Source: 77}},
		"it was cut":                  {outputs: 1, end: fails, late: true, want: &wire.Cut{Source: 77}},
	} {
		t.Run(name, func(t *testing.T) {
			a := attach(t, 8, func(task *Task, d *Delivery) error {
				switch string(d.Bytes()) {
				case "end":
					return nil
				case "fail":
					return fails
				}
				return task.EmitBytes(d.Bytes())
			})
			h := a.meetHand(t)
			h.listen()
			r, task := a.served(t, h)
			a.direct(t, h.node, task)
			if !tt.late {
				h.say(&wire.Await{Source: 77})
			}
			for i := range tt.outputs {
				h.say(small(task.id, uint32(i+1), uint64(i+1)))
				h.say(&wire.Finish{Delivery: said[*wire.Deliver](h).Delivery})
			}
			h.handled()
			last := "end"
			if tt.end != nil {
				last = "fail"
			}
			d := small(task.id, uint32(tt.outputs+1), uint64(tt.outputs+1))
			d.Payload, d.Size = []byte(last), uint64(len(last))
			h.say(d)
			if tt.end == nil {
				h.say(&wire.Streamed{Source: task.id, Deliveries: uint64(tt.outputs + 2)})
				h.handled() // before the host says end
				if err := r.CloseSend(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			Await(t, task.req.over)
			if tt.late {
				Await(t, func() bool { return a.link.task(task.id) == nil })
				h.say(&wire.Await{Source: 77})
			}
			for {
				switch m := h.heard().(type) {
				case *wire.Streamed, *wire.Cut:
					if !reflect.DeepEqual(m, tt.want) {
						t.Errorf("the node says %v %+v, want %v %+v", m.Kind(), m, tt.want.Kind(), tt.want)
					}
					r.Close()
					return
				}
			}
		})
	}
}

// TestNoStreamBehindTheAnswer: a stream that does not go past the host when the peer
// has lost that, and asks, does not later.
func TestNoStreamBehindTheAnswer(t *testing.T) {
	a, h, task, _ := alone(t, wire.Version)
	h.say(&wire.Await{Source: 77})
	if m := said[*wire.Cut](h); *m != (wire.Cut{Source: 77}) {
		t.Fatalf("the node says %+v, want that source 77 is cut", m)
	}
	a.direct(t, h.node, task)
	task.out.mu.Lock()
	defer task.out.mu.Unlock()
	if task.out.edges[0].to != nil {
		t.Error("what the task emits goes past the host")
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
			h := &hand{t: t, wire: d, said: make(chan wire.Message, 16), ended: make(chan error, 1)}
			h.listen()
			h.say(&wire.Cut{Source: said[*wire.Await](h).Source})
		},
		"they do not": func(_ *testing.T, conn *peer.Conn) { _ = conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			a := attach(t, 8, echo)
			conn := introduceTo(t, a.link, handNode, wire.Version, lasting(t))
			_, task := a.served(t, &hand{pair: &pair{node: handNode}})
			a.loseHost(t, task)
			if task.req.over() {
				t.Fatal("the task ended before the lane was read")
			}
			come(t, conn)
			Await(t, task.req.over)
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

// TestCutWhileAsked: a peer that asks for a stream between its cut and the end of
// its task is told of the cut, not of a length.
func TestCutWhileAsked(t *testing.T) {
	_, h, _, task := between(t, 2)
	task.out.cutAll()
	h.say(&wire.Await{Source: 77})
	for {
		switch m := h.heard().(type) {
		case *wire.Cut:
			return
		case *wire.Streamed:
			t.Fatalf("the node says %+v of a stream that was cut", m)
		}
	}
}
