package bus_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
)

// TestAnswersAreForPrograms: a list of which nothing is there is an empty one, and the
// names of edges are as everywhere.
func TestAnswersAreForPrograms(t *testing.T) {
	h := listen(t, bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "a", Remote: &bus.Remote{}}, {Name: "b", Remote: &bus.Remote{}}},
		Edges:  []bus.Edge{{From: "a", To: "b"}},
	}, bus.Options{})
	n := h.join(t, bus.JoinOptions{})
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

// TestErrorsAreSaidOnce: an error that comes from the host is what it was there, and
// its text is, too.
func TestErrorsAreSaidOnce(t *testing.T) {
	h := listen(t, remotes(linear(bus.StageSpec{Name: "a"})), bus.Options{})
	n := h.join(t, bus.JoinOptions{})
	r, err := n.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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

// TestServeAsTheWrongKind: who serves a stage with a handler of another kind is told so,
// and so is who has sent it something, and nothing is left of it.
func TestServeAsTheWrongKind(t *testing.T) {
	h := listen(t, remotes(linear(bus.StageSpec{Name: "a"})), bus.Options{})
	n := h.join(t, bus.JoinOptions{})
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

// TestWhatAnEndedRequestWaitsFor: a request that is over is there until its handler has
// returned, and says so.
func TestWhatAnEndedRequestWaitsFor(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	h := host(t, linear(bus.StageSpec{Name: "a", Handle: func(*bus.Task, *bus.Delivery) error {
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
