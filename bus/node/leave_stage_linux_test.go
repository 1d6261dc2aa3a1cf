package node_test

import (
	"context"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestServeThatEndsLeavesOthersAlone: a call of Serve that ends, or fails in part, leaves its own
// stages and waits for its own tasks, and for no others.
func TestServeThatEndsLeavesOthersAlone(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"})), bus.Options{})
	n := h.join(t, node.JoinOptions{})
	g := testbus.NewGate()
	lasts := make(chan error, 1)
	go func() { lasts <- n.Serve(t.Context(), g.Stage("a")) }()
	r, err := h.bus.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	<-g.Entered // a task of the first call is open all the time
	for i, specs := range [][]bus.StageSpec{{bus.Stage("a", testbus.Upper)}, {bus.Stage("a", testbus.Upper), bus.Stage("b", testbus.Upper)}} {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		ended := make(chan error, 1)
		go func() { ended <- n.Serve(ctx, specs...) }()
		if len(specs) == 1 {
			testbus.Await(t, func() bool { return h.server.Serving("a") == 2 })
			cancel()
		}
		if err := <-ended; (err != nil) != (len(specs) > 1) || err != nil && !strings.Contains(err.Error(), `no stage "b"`) {
			t.Errorf("call %d of Serve ended with %v", i, err)
		}
		testbus.Await(t, func() bool { return h.server.Serving("a") == 1 })
	}
	g.Leave <- struct{}{}
	testbus.MustReceive(t, r, []string{"x"})
	again, err := h.bus.Submit(t.Context(), "y")
	if err != nil {
		t.Fatal(err)
	}
	<-g.Entered
	g.Leave <- struct{}{}
	testbus.MustReceive(t, again, []string{"y"})
	select {
	case err := <-lasts:
		t.Errorf("the first call of Serve has ended: %v", err)
	default:
	}
}

// TestLeave: the message Leave leaves the stages that it names, or all of them.
func TestLeave(t *testing.T) {
	for name, c := range map[string]struct {
		leave wire.Leave
		stay  [2]int
	}{
		"the first":  {wire.Leave{Stages: []uint32{0}}, [2]int{0, 1}},
		"the second": {wire.Leave{Stages: []uint32{1, 1}}, [2]int{1, 0}},
		"both":       {wire.Leave{Stages: []uint32{1, 0}}, [2]int{0, 0}},
		"all":        {wire.Leave{}, [2]int{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"}, bus.StageSpec{Name: "b"})), bus.Options{})
			client := dialThin(t, h.path)
			client.await(wire.KindWelcome)
			for i, stage := range []string{"a", "b"} {
				client.send(&wire.Serve{Token: uint32(i + 1), Stage: stage})
				if m := client.await(wire.KindServing).(*wire.Serving); m.Stage != uint32(i) {
					t.Fatalf("%+v", m)
				}
			}
			client.send(&c.leave)
			client.send(&wire.Call{Token: 3, Method: "check"})
			client.await(wire.KindReply) // the host has handled Leave
			if stay := [2]int{h.server.Serving("a"), h.server.Serving("b")}; stay != c.stay {
				t.Errorf("%v clients serve the stages, want %v", stay, c.stay)
			}
		})
	}
}

// TestLeaveOfNoStage: a client that leaves a stage which it does not serve breaks the protocol.
func TestLeaveOfNoStage(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"})), bus.Options{})
	c := dialThin(t, h.path)
	c.await(wire.KindWelcome)
	c.send(&wire.Leave{Stages: []uint32{0}})
	if m := c.await(wire.KindRefuse).(*wire.Refuse); m.Code != wire.CodeProtocol || !strings.Contains(m.Text, "stage 0 of 0") {
		t.Errorf("%+v", m)
	}
}
