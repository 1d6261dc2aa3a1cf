package node_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// processLabel is how a report names a process of the test that has joined with that name.
func processLabel(name string) string { return fmt.Sprintf("process %d (%s)", os.Getpid(), name) }

// TestStallNamesProcesses: the report of a waiting emission names the process and the request that
// hold the slots.
func TestStallNamesProcesses(t *testing.T) {
	g := testbus.NewGate()
	p := testbus.Remotes(testbus.Linear(bus.Stage("first", testbus.Upper), bus.StageSpec{Name: "second", MaxInflight: 1, Handle: g.Stage("second").Handle}))
	p.Edges = append(p.Edges, bus.Edge{From: "second", Window: 1})
	h := listen(t, p, bus.Options{})
	caller, first, second := h.joinAs(t, "caller", node.JoinOptions{}), h.joinAs(t, "serves first", node.JoinOptions{}), h.joinAs(t, "serves second", node.JoinOptions{})
	go func() { _ = first.Serve(context.Background(), bus.Stage("first", testbus.Upper)) }() // ends with the node
	go func() { _ = second.Serve(context.Background(), g.Stage("second")) }()

	// All slots are taken.
	holder, err := caller.Submit(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	<-g.Entered
	waits, err := caller.Submit(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	s := testbus.WaitForStall(t, h.bus, "first->second", 0)
	if s.Request != waits.ID() || !strings.Contains(s.Holder, `stage "second"`) ||
		!strings.Contains(s.Holder, holder.ID().String()) || !strings.Contains(s.Holder, processLabel("serves second")) {
		t.Errorf("slots are taken: %v", s)
	}
	g.Leave <- struct{}{}
	testbus.MustReceive(t, holder, []string{"A"})
	<-g.Entered
	g.Leave <- struct{}{}
	testbus.MustReceive(t, waits, []string{"B"})

	// A slot is kept by a request whose caller sends nothing.
	idle := testbus.StreamOf(t, caller)
	if err := idle.Send(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	<-g.Entered
	g.Leave <- struct{}{}
	if waits, err = caller.Submit(t.Context(), "d"); err != nil {
		t.Fatal(err)
	}
	for s = testbus.WaitForStall(t, h.bus, "first->second", 0); strings.Contains(s.Holder, "keeps"); {
		s = testbus.WaitForStall(t, h.bus, "first->second", 0) // the handler may still be running
	}
	if !strings.Contains(s.Holder, idle.ID().String()) || !strings.Contains(s.Holder, processLabel("caller")) {
		t.Errorf("a request is idle: %v", s)
	}
	if err := idle.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	testbus.MustReceive(t, idle, []string{"C"})
	g.Leave <- struct{}{}
	testbus.MustReceive(t, waits, []string{"D"})
}

// TestStallNamesTheCallingProcess: the report of an emission that waits for a client's results
// names the client.
func TestStallNamesTheCallingProcess(t *testing.T) {
	p := testbus.Linear(bus.Stage("a", testbus.Upper))
	p.Edges = append(p.Edges, bus.Edge{From: "a", Window: 2})
	h := listen(t, p, bus.Options{})
	c := dialThin(t, h.path)
	c.await(wire.KindWelcome)
	c.send(&wire.Submit{Source: ownSource(1), Flags: wire.SubmitTell})
	submitted := c.await(wire.KindSubmitted).(*wire.Submitted)
	for put := range uint32(3) {
		c.send(inMessage(put, submitted.Source, "x"))
	}
	s := testbus.WaitForStall(t, h.bus, "a->", 2)
	if uint64(s.Request) != submitted.Request || !strings.Contains(s.Holder, fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("report: %v", s)
	}
	c.send(&wire.AbortRequest{Source: submitted.Source})
	c.await(wire.KindOver)
	c.send(&wire.Bye{}) // otherwise its payloads would stay until this process ends
}
