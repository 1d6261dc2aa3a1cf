package bus

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/scoreboard"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// soon is a context that ends after 20 s.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// goneConn is the connection of a process that is gone: it takes no delivery.
type goneConn struct{}

func (goneConn) OpenTask(p *ReplicaTask)                      { p.Assign(goneConn{}, nil) }
func (goneConn) Describe() string                             { return "a process that is gone" }
func (goneConn) DeliverWork(*Work, []*Delivery) (bool, error) { return false, nil }
func (goneConn) EndTask()                                     {}
func (goneConn) TaskOver(bool)                                {}
func (goneConn) Running(*Replica) []scoreboard.Activity       { return nil }

// goneReplica is a bus whose stage has one replica, of a process that is gone.
func goneReplica(t *testing.T) *Bus {
	t.Helper()
	b, err := Open(t.Context(), Pipeline{
		Stages: []StageSpec{{Name: "m", Remote: &Remote{}, State: StateRequest}},
		Edges:  []Edge{{To: "m", Window: 8}, {From: "m", Window: 8}},
	}, Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Heap}, MaxRequests: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(soon(t)); err != nil {
			t.Errorf("close the bus: %v", err)
		}
	})
	st, _ := b.Backend().RemoteStage("m")
	st.Attach(goneConn{}, 0, false).Begin()
	return b
}

// waitForWorks waits until so many works were given to the replica, and returns the stage and its only
// task.
func (b *Bus) waitForWorks(t *testing.T, works int) (r *RemoteStage, task *remoteTask) {
	t.Helper()
	r = b.graph.stages[0].remote
	Await(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for task = range r.tasks {
			return len(task.works) == works && task.works[works-1].replica != nil
		}
		return false
	})
	return r, task
}

// TestWorkOfGoneReplicaIsReleased: work that was given to a replica whose process is gone is
// released with its request, also if the request ends before Detach.
func TestWorkOfGoneReplicaIsReleased(t *testing.T) {
	b := goneReplica(t)
	r, err := b.Submit(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	b.waitForWorks(t, 1)
	r.Abort(nil)
	r.Close()
	Await(t, func() bool { return b.Stats().Live == 0 })
}

// TestTaskEndsAfterLastHolder: a task whose replicas have answered the end waits for the last of its
// deliveries: a reader may hold it for longer than the replica.
func TestTaskEndsAfterLastHolder(t *testing.T) {
	b := goneReplica(t)
	r, err := b.Submit(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	_, rt := b.waitForWorks(t, 1)
	rt.task.held.Add(1) // of a reader
	rt.works[0].Finished(nil, true)
	var answer *ReplicaTask
	Await(t, func() bool { // until it is asked to end
		answer = rt.stickyReplica.tasks[rt]
		return answer.MayEnd()
	})
	answer.TaskEnded(nil)
	if r.over() {
		t.Error("the request has ended while a delivery of it is held")
	}
	rt.task.unhold()
	if err := r.Wait(soon(t)); err != nil {
		t.Error(err)
	}
}

// overConn is the connection of a process that notes what it is told of the end of tasks.
type overConn struct {
	goneConn
	over chan bool
}

func (c overConn) OpenTask(p *ReplicaTask) { p.Assign(c, nil) }
func (c overConn) TaskOver(known bool)     { c.over <- known }

// TestReplicaIsToldOfFailure: a replica that ends its tasks unasked is told of the end of a task whose handler has
// failed, and need not be told of the end of another.
func TestReplicaIsToldOfFailure(t *testing.T) {
	for name, err := range map[string]error{"a handler that fails": errUnwilling, "a handler that returns": nil} {
		t.Run(name, func(t *testing.T) {
			b := goneReplica(t)
			b.graph.stages[0].remote.serving[0].Detach(nil)
			conn := overConn{over: make(chan bool, 1)}
			b.graph.stages[0].remote.Attach(conn, 0, true).Begin()
			if _, err := b.Submit(t.Context(), []byte("hello")); err != nil {
				t.Fatal(err)
			}
			_, rt := b.waitForWorks(t, 1)
			rt.works[0].Finished(err, true)
			if known := <-conn.over; known != (err == nil) {
				t.Errorf("the replica is taken to know of the end: %t", known)
			}
		})
	}
}

// secondFailsConn is a connection whose second DeliverWork fails.
type secondFailsConn struct {
	overConn
	works *int
}

func (c secondFailsConn) OpenTask(p *ReplicaTask) { p.Assign(c, nil) }

func (c secondFailsConn) DeliverWork(*Work, []*Delivery) (bool, error) {
	if *c.works++; *c.works == 2 {
		return false, errUnwilling
	}
	return true, nil
}

// TestReplicaIsToldOfUndeliverableEnd: a replica that has not got the last input of a task is told of the task's end.
func TestReplicaIsToldOfUndeliverableEnd(t *testing.T) {
	b, err := Open(t.Context(), Pipeline{
		Stages: []StageSpec{{Name: "m", Remote: &Remote{Routing: RoundRobin}, State: StateNone}},
		Edges:  []Edge{{To: "m", Window: 8}, {From: "m", Window: 8}},
	}, Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Heap}, MaxRequests: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(soon(t)); err != nil {
			t.Errorf("close the bus: %v", err)
		}
	})
	conn := secondFailsConn{overConn{over: make(chan bool, 1)}, new(int)}
	remote := b.graph.stages[0].remote
	remote.Attach(conn, 0, true).Begin()
	r, err := b.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Send(t.Context(), []byte("one")); err != nil {
		t.Fatal(err)
	}
	_, rt := b.waitForWorks(t, 1)
	if err := r.Send(t.Context(), []byte("two"), Last()); err != nil {
		t.Fatal(err)
	}
	Await(t, func() bool { // until the last input waits for the first one
		remote.mu.Lock()
		defer remote.mu.Unlock()
		return len(rt.lastWorks) == 1
	})
	rt.works[0].Finished(nil, true)
	if err := r.Wait(soon(t)); !errors.Is(err, errUnwilling) {
		t.Errorf("the request ended with %v, want %v", err, errUnwilling)
	}
	if known := <-conn.over; known {
		t.Error("the replica is taken to know of the end")
	}
}

// failingConn is a connection whose DeliverWork fails.
type failingConn struct{ TaskConn }

var errUnwilling = errors.New("it takes nothing")

func (failingConn) DeliverWork(*Work, []*Delivery) (bool, error) { return false, errUnwilling }

// TestUndeliverableReplayIsReleased: all works of a replay that cannot be sent to the replica are released.
func TestUndeliverableReplayIsReleased(t *testing.T) {
	b := goneReplica(t)
	r, err := b.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const works = 3
	for range works {
		if err := r.Send(t.Context(), []byte("hello")); err != nil {
			t.Fatal(err)
		}
	}
	remote, task := b.waitForWorks(t, works)
	remote.mu.Lock()
	p := task.stickyReplica.tasks[task]
	p.conn = failingConn{p.conn}
	var after AfterUnlock
	remote.replayTask(task, &after)
	if left := len(task.works); left != 0 {
		t.Errorf("the stage keeps %d of %d works", left, works)
	}
	remote.mu.Unlock()
	after.Run()
	if err := r.Wait(soon(t)); !errors.Is(err, errUnwilling) {
		t.Errorf("the request ended with %v", err)
	}
	r.Close()
	Await(t, func() bool { return b.Stats().Live == 0 })
}
