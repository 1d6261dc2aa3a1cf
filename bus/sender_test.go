package bus

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/scoreboard"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// instantConn is the connection of a process that finishes each work, and ends its task, at once.
type instantConn struct {
	task *ReplicaTask
	done chan struct{} // receives one value for each work
}

func (s *instantConn) OpenTask(p *ReplicaTask) {
	s.task = p
	p.Assign(s, nil)
}
func (s *instantConn) Describe() string { return "a process that is swift" }
func (s *instantConn) EndTask()         {}

func (s *instantConn) Running(*Replica) []scoreboard.Activity { return nil }

func (s *instantConn) TaskOver(bool) {}

func (s *instantConn) DeliverWork(w *Work, _ []*Delivery) (bool, error) {
	task := s.task
	go func() { // as the session of the process does
		w.Finished(nil, true)
		task.TaskEnded(nil)
		s.done <- struct{}{}
	}()
	return true, nil
}

// finishingSink is a sink that finishes each result.
type finishingSink struct{ ended chan struct{} }

func (finishingSink) Put(d *Delivery, _ int) error { return d.Finish(nil) }

func (finishingSink) Returns(int, uint64) bool { return true }
func (e finishingSink) Ended()                 { close(e.ended) }
func (finishingSink) Describe() string         { return "another process" }

// TestSenderEndsTheRequest: the goroutine that sends the last input of a request runs the
// stage's worker. If the work is done by then, the worker ends and forgets the request, which
// takes the locks by which the goroutine has sent.
func TestSenderEndsTheRequest(t *testing.T) {
	b, err := Open(t.Context(), Pipeline{
		Stages: []StageSpec{{Name: "m", Remote: &Remote{}}},
		Edges:  []Edge{{To: "m"}, {From: "m"}},
	}, Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Heap}, MaxRequests: 4})
	if err != nil {
		t.Fatal(err)
	}
	conn := &instantConn{done: make(chan struct{})}
	st, _ := b.Backend().RemoteStage("m")
	st.Attach(conn, 0, true).Begin()
	handle := st.stage.spec.Handle
	st.stage.spec.Handle = func(task *Task, d *Delivery) error {
		err := handle(task, d)
		<-conn.done // so that the work is done when the worker runs
		return err
	}
	for range 100 { // the worker is usually idle when the next request comes
		sendOne(t, b)
	}
	Await(t, func() bool { return b.Stats().Live == 0 })
	if err := b.Close(soon(t)); err != nil {
		t.Error(err)
	}
}

// sendOne sends a request of one input whose results a sink takes.
func sendOne(t *testing.T, b *Bus) {
	t.Helper()
	r := beginWithSink(t, b, finishingSink{make(chan struct{})})
	sent := make(chan error, 1)
	go func() { sent <- r.Send(t.Context(), []byte("hello"), Last()) }()
	select {
	case err := <-sent:
		if err != nil {
			t.Error(err)
		}
	case <-soon(t).Done():
		t.Fatal("the sender has not returned")
	}
	select {
	case <-r.Done():
	case <-soon(t).Done():
		t.Fatal("the request has not ended")
	}
	if got := r.Outcome(); got != Completed {
		t.Errorf("the request is %v: %v", got, r.Err())
	}
}

// beginWithSink begins a request whose results a sink takes.
func beginWithSink(t *testing.T, b *Bus, sink Sink) *Request {
	t.Helper()
	o := RequestOptions{Sink: sink}
	if err := b.Backend().AcquirePermit(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r, err := b.Backend().Admit(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
