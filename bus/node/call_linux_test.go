package node_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestCallAnswersAreCompactJSON: an empty list is [] and not null, and the names of edges are not
// escaped.
func TestCallAnswersAreCompactJSON(t *testing.T) {
	h := listen(t, bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "a", Remote: &bus.Remote{}}, {Name: "b", Remote: &bus.Remote{}}},
		Edges:  []bus.Edge{{From: "a", To: "b"}},
	}, bus.Options{})
	n := h.join(t, node.JoinOptions{})
	for _, method := range []string{"status", "stats", "stalls", "check", "leases"} {
		answer, err := n.Call(t.Context(), method, nil)
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		for _, bad := range []string{"null", `\u003e`, "\n"} {
			if bytes.Contains(answer, []byte(bad)) {
				t.Errorf("the answer to %s has %q: %s", method, bad, answer)
			}
		}
	}
}

// TestHostErrorTextIsNotRepeated: an error from the host wraps the same sentinel as at the host,
// and its text contains the sentinel's text once.
func TestHostErrorTextIsNotRepeated(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"})), bus.Options{})
	n := h.join(t, node.JoinOptions{})
	r := testbus.StreamOf(t, n)
	h.bus.AbortAll(errors.New("enough"))
	_, aborted := r.Recv(t.Context())
	r.Close()
	r, late := n.Stream(t.Context(), bus.WithDeadline(time.Now().Add(-time.Hour)))
	if late == nil {
		_, late = r.Recv(t.Context())
		r.Close()
	}
	h.server.Refuse()
	_, refused := n.Stream(t.Context())
	for _, c := range []struct {
		err, sentinel error
		want          string
	}{
		{aborted, bus.ErrAborted, "bus: request aborted: enough"},
		{late, bus.ErrDeadline, ""},
		{refused, bus.ErrClosed, "bus: submit: bus: closed: the host takes no new requests, it is going to stop"},
	} {
		switch {
		case !errors.Is(c.err, c.sentinel):
			t.Errorf("%v is no %v", c.err, c.sentinel)
		case c.want != "" && c.err.Error() != c.want:
			t.Errorf("got %q, want %q", c.err, c.want)
		case strings.Count(c.err.Error(), c.sentinel.Error()) != 1:
			t.Errorf("%q says it more than once", c.err)
		}
	}
	if _, err := n.Call(t.Context(), "nonsense", nil); err == nil || err.Error() != `unknown: there is no method "nonsense"` {
		t.Errorf("call: %v", err)
	}
}

// TestServeWithWrongHandlerKind: Serve with a handler of another kind than the pipeline's fails
// with the reason, and so does the request that was sent to the stage.
func TestServeWithWrongHandlerKind(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"})), bus.Options{})
	n := h.join(t, node.JoinOptions{})
	const want = `stage "a": the pipeline says join is false, the handler makes it true`
	err := n.Serve(t.Context(), bus.StageSpec{Name: "a", Join: func(*bus.Task, []*bus.Delivery) error { return nil }})
	if !errors.Is(err, bus.ErrConfig) || !strings.Contains(err.Error(), want) {
		t.Errorf("serve: %v, want %s", err, want)
	}
	r, err := h.bus.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Recv(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the request ended with %v, want %s", err, want)
	}
	r.Close()
}

// TestServeJoinWithWrongBranches: a function that joins two branches cannot serve a stage that
// joins three.
func TestServeJoinWithWrongBranches(t *testing.T) {
	p := testbus.Diamond(bus.Stage("a", testbus.Upper), bus.Stage("b", testbus.Upper), bus.Stage("c", testbus.Upper))
	p.Edges = append(p.Edges, bus.Edge{From: "a", To: "join"})
	h := listen(t, testbus.Remotes(p), bus.Options{})
	err := h.join(t, node.JoinOptions{}).Serve(t.Context(), testbus.Concat("join"))
	if want := "its function joins 2 branches, and the pipeline gives it 3: b, c, a"; !errors.Is(err, bus.ErrConfig) || !strings.Contains(err.Error(), want) {
		t.Errorf("serve: %v, want %s", err, want)
	}
}

// awaitUnserved waits until an input waits for a process that serves its stage: the first one gets it, also if it leaves
// the stage at once.
func awaitUnserved(t *testing.T, b *bus.Bus) {
	t.Helper()
	testbus.Await(t, func() bool {
		return slices.ContainsFunc(b.Stalls(0), func(s bus.Stall) bool { return s.Stage == "a" })
	})
}

// TestServeAllOrNothing: when the host refuses one stage of a call of Serve, the accepted stages
// are left too. Their open tasks are finished first, and later inputs go to other processes.
func TestServeAllOrNothing(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"})), bus.Options{})
	waits, err := h.bus.Submit(t.Context(), "waits")
	if err != nil {
		t.Fatal(err)
	}
	awaitUnserved(t, h.bus)
	begun, goOn := make(chan struct{}), make(chan struct{})
	var finished atomic.Bool
	n := h.join(t, node.JoinOptions{})
	served := make(chan error, 1)
	go func() {
		served <- n.Serve(t.Context(), bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error {
			close(begun)
			<-goOn
			finished.Store(true)
			return t.Forward(d)
		}}, bus.Stage("b", testbus.Upper))
	}()
	<-begun
	close(goOn)
	if err := <-served; err == nil || !strings.Contains(err.Error(), `no stage "b"`) {
		t.Errorf("serve: %v", err)
	}
	if !finished.Load() {
		t.Error("Serve has not waited for the open task")
	}
	if _, err := n.Call(t.Context(), "status", nil); err != nil { // the host has handled all earlier messages
		t.Fatal(err)
	}
	if left := h.server.Serving("a"); left != 0 {
		t.Fatalf("%d processes serve the stage still", left)
	}
	testbus.MustReceive(t, waits, []string{"waits"})
	h.serve(t, bus.Stage("a", testbus.Upper))
	r, err := h.bus.Submit(t.Context(), "later")
	if err != nil {
		t.Fatal(err)
	}
	testbus.MustReceive(t, r, []string{"LATER"})
}

// TestFailedServeReturnsWithContext: a call of Serve that has failed waits for open tasks only
// until its context ends.
func TestFailedServeReturnsWithContext(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"})), bus.Options{})
	r := testbus.StreamOf(t, h.bus)
	if err := r.Send(t.Context(), "of a stream that does not end"); err != nil {
		t.Fatal(err)
	}
	awaitUnserved(t, h.bus)
	n := h.join(t, node.JoinOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- n.Serve(ctx, bus.Stage("a", testbus.Upper), bus.Stage("b", testbus.Upper)) }()
	if d, err := r.Recv(t.Context()); err != nil {
		t.Fatal(err)
	} else {
		_ = d.Finish(nil)
	}
	testbus.Await(t, func() bool { return h.server.Serving("a") == 0 })
	cancel()
	if err := <-served; err == nil || !strings.Contains(err.Error(), `no stage "b"`) {
		t.Errorf("serve: %v", err)
	}
	r.Close()
}

// TestEndedRequestNamesItsHandler: an ended request stays listed until its handler has returned,
// and its state names the stage.
func TestEndedRequestNamesItsHandler(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	h := serveAll(t, testbus.Linear(bus.StageSpec{Name: "a", Handle: func(*bus.Task, *bus.Delivery) error {
		close(begun)
		<-goOn
		return nil
	}}), bus.Options{})
	r, err := h.bus.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	state := func() string { return h.server.Status().Requests[0].State }
	if got := state(); !strings.Contains(got, `(running): stage "a" keeps 1 delivery: process`) {
		t.Errorf("while it runs: %s", got)
	}
	r.Abort(nil)
	if got, want := state(), `(aborted): stage "a" keeps 1 delivery: `; !strings.Contains(got, want) || strings.Contains(got, "they wait for a replica") {
		t.Errorf("when it is aborted: %s", got)
	}
	close(goOn)
	r.Close()
}

// TestAnsweredHookRunsAfterReply: the hook ListenOptions.Answered runs after the answer was sent.
func TestAnsweredHookRunsAfterReply(t *testing.T) {
	b, err := bus.Open(t.Context(), testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"})), bus.Options{})
	if err != nil {
		t.Fatal(err)
	}
	path, got, answered := filepath.Join(t.TempDir(), "bus.sock"), make(chan struct{}), make(chan string)
	server, err := host.Listen(b, path, host.ListenOptions{
		Methods: map[string]func(context.Context, []byte) (any, error){
			"end": func(context.Context, []byte) (any, error) { return "soon", nil },
		},
		Answered: func(method string) {
			<-got
			answered <- method
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := dialThin(t, path)
	c.send(&wire.Call{Token: 1, Method: "end"})
	if m := c.await(wire.KindReply).(*wire.Reply); string(m.Piece) != `"soon"` {
		t.Errorf("the answer is %s", m.Piece)
	}
	close(got)
	if method := <-answered; method != "end" {
		t.Errorf("told of %q", method)
	}
	c.send(&wire.Call{Token: 2, Method: "stats"}) // a method of the bus: the hook is not called
	c.await(wire.KindReply)
	c.send(&wire.Bye{})
	if err := errors.Join(server.Close(t.Context()), b.Close(t.Context())); err != nil {
		t.Error(err)
	}
}
