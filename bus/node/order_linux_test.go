package node_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// recorder is a stage that records its inputs in order.
type recorder struct {
	mu     sync.Mutex
	inputs []string
}

func (r *recorder) stage() bus.StageSpec {
	st := bus.Stage("m", func(_ *bus.Task, in string) (string, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.inputs = append(r.inputs, in)
		return in, nil
	})
	st.MaxInflight = 1
	return st
}

func (r *recorder) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.inputs)
}

// submitEach submits a request for each input, and returns when the host has read them.
func submitEach(t *testing.T, n *node.Node, inputs ...string) []*bus.Request {
	t.Helper()
	all := make([]*bus.Request, len(inputs))
	for i, in := range inputs {
		r, err := n.Submit(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		all[i] = r
	}
	if _, err := n.Call(t.Context(), "stats", nil); err != nil {
		t.Fatal(err)
	}
	return all
}

func numbered(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s%03d", prefix, i))
	}
	return all
}

// receiveAll reads the results of one request after the other.
func receiveAll(t *testing.T, all []*bus.Request) {
	t.Helper()
	for _, r := range all {
		for _, err := range r.Results(testbus.Soon(t)) {
			if err != nil {
				t.Error(err)
				return
			}
		}
	}
}

// TestRequestsBeginInOrder: the requests of a client begin, and reach the first stage, in the order
// in which they were submitted, whether they wait for permits or for slots.
func TestRequestsBeginInOrder(t *testing.T) {
	for _, places := range []int{1, 3, 100} {
		t.Run(fmt.Sprint(places), func(t *testing.T) {
			var m recorder
			h := listen(t, testbus.Linear(m.stage()), bus.Options{MaxRequests: places})
			n := h.join(t, node.JoinOptions{MaxRequests: 100})
			first := make([]*bus.Request, min(places, 3)) // they hold all permits, or the slot
			for i := range first {
				first[i] = testbus.StreamOf(t, h.bus)
			}
			if err := first[0].Send(t.Context(), "first"); err != nil {
				t.Fatal(err)
			}
			inputs := numbered("", 60)
			all := submitEach(t, n, inputs...)
			for _, r := range first {
				r.Close()
			}
			receiveAll(t, all)
			if had := m.list(); !slices.Equal(had[len(had)-len(inputs):], inputs) {
				t.Errorf("the stage had %v", had)
			}
		})
	}
}

// TestClientsTakeTurns: a client that submits one request gets a permit or slot before another
// client has got those of all its earlier requests.
func TestClientsTakeTurns(t *testing.T) {
	for name, places := range map[string]int{"places": 1, "slots": 100} {
		t.Run(name, func(t *testing.T) {
			var m recorder
			h := listen(t, testbus.Linear(m.stage()), bus.Options{MaxRequests: places})
			many, one := h.join(t, node.JoinOptions{MaxRequests: 100}), h.join(t, node.JoinOptions{})
			first := testbus.StreamOf(t, h.bus)
			if err := first.Send(t.Context(), "first"); err != nil {
				t.Fatal(err)
			}
			all := submitEach(t, many, numbered("many", 50)...)
			all = append(all, submitEach(t, one, "one")...)
			first.Close()
			var received sync.WaitGroup
			received.Go(func() { receiveAll(t, all[:50]) })
			received.Go(func() { receiveAll(t, all[50:]) })
			received.Wait()
			if had := slices.DeleteFunc(m.list(), func(s string) bool { return s == "first" }); slices.Index(had, "one") != 1 {
				t.Errorf("the stage had %v", had)
			}
		})
	}
}

// TestTryDoesNotOvertake: TrySubmit gets no permit while another request waits for one.
func TestTryDoesNotOvertake(t *testing.T) {
	var m recorder
	h := listen(t, testbus.Linear(m.stage()), bus.Options{MaxRequests: 1})
	first := testbus.StreamOf(t, h.bus)
	n := h.join(t, node.JoinOptions{})
	all := submitEach(t, n, "a", "b")
	if _, err := n.TrySubmit(t.Context(), "c"); !errors.Is(err, bus.ErrOverloaded) {
		t.Errorf("try: %v", err)
	}
	if _, err := h.bus.TrySubmit(t.Context(), "d"); !errors.Is(err, bus.ErrOverloaded) {
		t.Errorf("try: %v", err)
	}
	first.Close()
	receiveAll(t, all)
	if had := m.list(); !slices.Equal(had, []string{"a", "b"}) {
		t.Errorf("the stage had %v", had)
	}
}

// TestByeDropsWaitingRequests: the message Bye drops the client's requests that wait for permits,
// and those whose inputs wait for a window.
func TestByeDropsWaitingRequests(t *testing.T) {
	for name, places := range map[string]int{"places": 1, "windows": 5} {
		t.Run(name, func(t *testing.T) {
			forward := func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }
			p := testbus.Linear(bus.StageSpec{Name: "m", Handle: forward})
			p.Edges = []bus.Edge{{To: "m", Window: 1}, {From: "m", Window: 1}}
			h := listen(t, p, bus.Options{MaxRequests: places})
			c := dialThin(t, h.path)
			for i := range uint32(5) {
				c.send(&wire.Submit{Source: ownSource(i + 1)})
				for j := range uint32(5) { // of which two fit
					c.send(inMessage(10*i+j+1, ownSource(i+1), "x"))
				}
			}
			c.await(wire.KindDeliver) // of a result that is not finished
			c.send(&wire.Bye{})
			testbus.Await(t, func() bool { return h.bus.Stats().Live == 0 })
		})
	}
}

// TestHostRefusesWaitingRequests: a host that is going to stop also refuses the requests that wait
// for permits.
func TestHostRefusesWaitingRequests(t *testing.T) {
	h := listen(t, testbus.Linear(bus.Stage("m", testbus.Upper)), bus.Options{MaxRequests: 1})
	first := testbus.StreamOf(t, h.bus)
	n := h.join(t, node.JoinOptions{})
	all := submitEach(t, n, "a", "b")
	h.server.Refuse()
	for _, r := range all {
		if err := r.Wait(testbus.Soon(t)); !errors.Is(err, bus.ErrClosed) {
			t.Errorf("a request that waits ends with %v", err)
		}
	}
	first.Close()
	testbus.Await(t, func() bool { return h.bus.Stats().Live == 0 })
}

// TestHostDeathEndsPermitWait: a request that waits in a node for a permit ends when the host is
// gone, even while the caller holds results of the requests that have the permits.
func TestHostDeathEndsPermitWait(t *testing.T) {
	var m recorder
	h := listen(t, testbus.Linear(m.stage()), bus.Options{})
	n := h.join(t, node.JoinOptions{MaxRequests: 4})
	for _, r := range submitEach(t, n, numbered("", 4)...) {
		d, err := r.Recv(testbus.Soon(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Finish(nil) })
	}
	failed := make(chan error)
	go func() {
		_, err := n.Submit(testbus.Soon(t), "x")
		failed <- err
	}()
	testbus.Await(t, func() bool { return node.PermitWaiters(t, n) == 1 })
	node.BreakConnection(n)
	if err := <-failed; !errors.Is(err, bus.ErrHostGone) {
		t.Errorf("submit: %v", err)
	}
}
