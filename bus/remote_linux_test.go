package bus

import (
	"errors"
	"testing"
)

// goneReplica is a host whose stage has one replica, of a process that was just found to
// be gone.
func goneReplica(t *testing.T) *attached {
	t.Helper()
	a := attach(t, 8, echo)
	warm, err := a.bus.Submit(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if err := warm.Wait(t.Context()); err != nil { // the node serves the stage
		t.Fatal(err)
	}
	warm.Close()
	sess := a.server.live()[0]
	sess.account.Close(false, false) // as end does
	return a
}

// given is what the stage knows of its one task when that many works were given to the
// replica.
func (a *attached) given(t *testing.T, works int) (r *remote, task *remoteTask) {
	t.Helper()
	r = a.bus.graph.stages[0].remote
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

// TestGivenToAGoneReplica: work that was given to a replica just when its process
// was found to be gone is given back with its request, also when that ends before
// the stage hears of it.
func TestGivenToAGoneReplica(t *testing.T) {
	a := goneReplica(t)
	r, err := a.bus.Submit(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	a.given(t, 1)
	r.Abort(nil)
	r.Close()
	Await(t, func() bool { return a.bus.Stats().Live == 0 })
}

// unwilling is a replica that can be given nothing.
type unwilling struct{ taskAgent }

var errUnwilling = errors.New("it takes nothing")

func (unwilling) deliverWork(_ *work, parts []*Delivery) (bool, error) {
	parts[0].flow.req.end(Failed, errUnwilling)
	return false, errUnwilling
}

// TestReplayThatCannotBeGiven: the works of a replay that no replica can be given are
// given back, each of them.
func TestReplayThatCannotBeGiven(t *testing.T) {
	a := goneReplica(t)
	r, err := a.bus.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const works = 3
	for range works {
		if err := r.Send(t.Context(), []byte("hello")); err != nil {
			t.Fatal(err)
		}
	}
	remote, task := a.given(t, works)
	remote.mu.Lock()
	p := task.home.postings[task]
	p.agent = unwilling{p.agent}
	remote.replayTask(task)
	if left := len(task.works); left != 0 {
		t.Errorf("the stage keeps %d of %d works", left, works)
	}
	remote.mu.Unlock()
	if err := r.Wait(soon(t)); !errors.Is(err, errUnwilling) {
		t.Errorf("the request ended with %v", err)
	}
	r.Close()
	Await(t, func() bool { return a.bus.Stats().Live == 0 })
}
