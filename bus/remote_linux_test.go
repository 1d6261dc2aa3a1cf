package bus

import "testing"

// TestGivenToAGoneReplica: work that was given to a replica just when its process
// was found to be gone is given back with its request, also when that ends before
// the stage hears of it.
func TestGivenToAGoneReplica(t *testing.T) {
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
	sess.mu.Lock()
	sess.gone = true // as end says
	sess.mu.Unlock()
	r, err := a.bus.Submit(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	remote := a.bus.graph.stages[0].remote
	Await(t, func() bool {
		remote.mu.Lock()
		defer remote.mu.Unlock()
		for rt := range remote.tasks {
			return len(rt.works) == 1 && rt.works[0].replica != nil
		}
		return false
	})
	r.Abort(nil)
	r.Close()
	Await(t, func() bool { return a.bus.Stats().Live == 0 })
}
