package bus_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/scoreboard"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// losingSink takes results and does not finish them: the request waits for ever.
type losingSink struct{ came chan *bus.Delivery }

func (l losingSink) Put(d *bus.Delivery, _ int) error {
	l.came <- d
	return nil
}

func (l losingSink) Returns(int, uint64) bool { return true }
func (losingSink) Ended()                     {}
func (losingSink) Describe() string           { return "a process that loses results" }

// TestProgressSaysWhichStepIsNext: Progress counts a request as at its caller, working, blocked, or waiting.
func TestProgressSaysWhichStepIsNext(t *testing.T) {
	gate := testbus.NewGate()
	pipeline := testbus.Linear(gate.Stage("m"))
	pipeline.Stages[0].MaxInflight = 1
	b := testbus.Open(t, pipeline, bus.Options{MaxRequests: 2})
	progress := b.Backend().Progress
	expect := func(when string, want bus.Progress) bus.Progress {
		t.Helper()
		got := progress()
		want.Moved = got.Moved
		if got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
		return got
	}
	before := expect("no request", bus.Progress{})
	first := testbus.StreamOf(t, b)
	begun := expect("no input yet", bus.Progress{AtCaller: true})
	if err := first.Send(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	<-gate.Entered
	sent := expect("its handler computes", bus.Progress{Working: true})
	if before.Moved == begun.Moved || begun.Moved == sent.Moved {
		t.Errorf("Moved does not change with a new request, or a delivery: %d, %d, %d", before.Moved, begun.Moved, sent.Moved)
	}

	second := testbus.StreamOf(t, b)
	waits := make(chan error)
	go func() { waits <- second.Send(t.Context(), "y") }()
	testbus.Await(t, func() bool { return progress().Blocked == 1 })
	expect("another waits for its slot", bus.Progress{Working: true, Blocked: 1})
	second.Close()
	if err := <-waits; err == nil {
		t.Error("the second input was sent")
	}

	gate.Leave <- struct{}{}
	testbus.Await(t, func() bool { return !progress().Working || b.Stats().Edges[1].Deliveries > 0 })
	if err := first.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return first.Outcome() == bus.Completed })
	done := expect("its results are not read", bus.Progress{AtCaller: true})
	if done.Moved == sent.Moved {
		t.Error("Moved does not change with the end of a request")
	}
	if _, err := testbus.Receive(t, first); err != nil {
		t.Fatal(err)
	}
}

// TestProgressOfRemoteStage: work that waits for a replica counts as Working, and a lost result counts as
// Waiting.
func TestProgressOfRemoteStage(t *testing.T) {
	b := testbus.Open(t, bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "m", Remote: &bus.Remote{}, State: bus.StateRequest}},
		Edges:  []bus.Edge{{To: "m"}, {From: "m"}},
	}, bus.Options{})
	sink := losingSink{came: make(chan *bus.Delivery, 1)}
	if err := b.Backend().AcquirePermit(t.Context(), bus.RequestOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := b.Backend().Admit(t.Context(), bus.RequestOptions{Sink: sink})
	if err != nil {
		t.Fatal(err)
	}
	progress := b.Backend().Progress
	if err := r.Send(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return progress().Working }) // it waits for a replica
	st, _ := b.Backend().RemoteStage("m")
	conn := &taskConn{works: make(chan *bus.Work, 1), ends: make(chan struct{})}
	st.Attach(conn, 0, false).Begin()
	w := <-conn.works
	if p := progress(); !p.Working {
		t.Errorf("the replica has a delivery: %+v", p)
	}
	if err := conn.output.Emit("y"); err != nil {
		t.Fatal(err)
	}
	lost := <-sink.came
	w.Finished(nil, true)
	if p := progress(); p.Working || p.AtCaller || p.Waiting != 1 {
		t.Errorf("the result is lost: %+v", p)
	}
	if err := lost.Finish(nil); err != nil {
		t.Error(err)
	}
	if p := progress(); !p.AtCaller || p.Waiting > 0 {
		t.Errorf("the caller has to send the next input: %+v", p)
	}
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-conn.ends
	if p := progress(); !p.Working || p.Waiting != 1 {
		t.Errorf("the replica has to answer the end of the task: %+v", p)
	}
	if n := conn.task.TaskEnded(nil); n > 0 {
		t.Fatalf("%d inputs are not finished", n)
	}
	testbus.Await(t, func() bool { return r.Outcome() == bus.Completed })
	if p := progress(); p.Working || p.Waiting > 0 {
		t.Errorf("the request is over: %+v", p)
	}
	r.Close()

	unread := testbus.StreamOf(t, b)
	if err := unread.Send(t.Context(), "z"); err != nil {
		t.Fatal(err)
	}
	w = <-conn.works
	if err := conn.output.Emit("y"); err != nil {
		t.Fatal(err)
	}
	w.Finished(nil, true)
	if p := progress(); !p.AtCaller || p.Working || p.Waiting > 0 {
		t.Errorf("the caller does not read a result: %+v", p)
	}
	unread.Close()
}

// taskConn is the connection of a replica that gets one task after the other.
type taskConn struct {
	works  chan *bus.Work
	ends   chan struct{} // closed when the first task has to end
	task   *bus.ReplicaTask
	output bus.Emitter
}

func (o *taskConn) OpenTask(p *bus.ReplicaTask)              { o.task, o.output = p, p.Assign(o, nil).Output }
func (*taskConn) Running(*bus.Replica) []scoreboard.Activity { return nil }

func (o *taskConn) Describe() string { return "a replica" }
func (o *taskConn) EndTask()         { close(o.ends) }
func (o *taskConn) TaskOver(bool)    {}

func (o *taskConn) DeliverWork(w *bus.Work, _ []*bus.Delivery) (bool, error) {
	o.works <- w
	return true, nil
}
