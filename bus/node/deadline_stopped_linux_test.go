package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func init() {
	roles["host of a stage"] = hosting(testbus.Remotes(testbus.Linear(forwarding("a"))), bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared}})
}

// TestDeadlinesWhenHostIsStopped: while the host is stopped, requests and questions end at their
// deadlines by the clock of the waiting process. When the host continues, it reports the same
// outcomes, and nothing is left over.
func TestDeadlinesWhenHostIsStopped(t *testing.T) {
	h, cmd := hostAloneAs(t, "host of a stage")
	host := cmd.Process
	server, caller := h.join(t, node.JoinOptions{}), h.join(t, node.JoinOptions{})
	mustPublish(t, caller.Directory(), named(1), someFile(t), 1)
	began, stopped, asked := make(chan struct{}), make(chan bool), make(chan error, 2)
	go func() {
		_ = server.Serve(context.Background(), bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error { // ends with the node
			if _, limited := t.Context().Deadline(); !limited {
				return t.Forward(d)
			}
			if err := waitForStop(t, began, stopped); err != nil {
				return err
			}
			go func() {
				_, err := server.Stream(t.Context())
				asked <- err
			}()
			_, err := server.Directory().Find(t.Context(), named(1))
			asked <- err
			return err
		}})
	}()
	trip := func(n *node.Node) {
		r, err := n.Submit(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		testbus.MustReceive(t, r, []string{"x"})
	}
	trip(server) // so that all links and buffers exist
	trip(caller)
	files := testbus.OpenFiles(t)
	defer mustContinue(t, host) // a node waits for its host when it closes
	r := stopHostInRequest(t, caller, host, began, stopped, []byte("x"))
	ctx, cancel := context.WithTimeout(t.Context(), testbus.Patience)
	defer cancel()
	for range cap(asked) {
		select {
		case err := <-asked:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a stage's question ended with %v, want its context's error", err)
			}
		case <-ctx.Done():
			t.Fatal("a stage waits for its host past the deadline of the request")
		}
	}
	if _, err := r.Recv(ctx); !errors.Is(err, bus.ErrDeadline) || !strings.Contains(err.Error(), "the host had not said by then how it ended") {
		t.Errorf("the request ended with %v, want ErrDeadline and an unknown outcome at the host", err)
	}
	for range 3 {
		in := bus.WithDeadline(time.Now().Add(10 * time.Millisecond))
		r, err := caller.Submit(ctx, "x", in)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = r.Recv(ctx); !errors.Is(err, bus.ErrDeadline) {
			t.Errorf("submit: %v, want ErrDeadline", err)
		}
		if _, err := caller.Stream(ctx, in); !errors.Is(err, bus.ErrDeadline) {
			t.Errorf("stream: %v, want ErrDeadline", err)
		}
	}
	mustContinue(t, host)
	testbus.Await(t, func() bool { return statsOf(t, caller).Live == 0 })
	if s := statsOf(t, caller); s.Failed+s.Aborted > 0 || s.Completed != 2 {
		t.Errorf("%d requests failed, %d were aborted and %d completed; all but two were past their deadlines", s.Failed, s.Aborted, s.Completed)
	}
	for _, n := range []*node.Node{server, caller} {
		if q, s := node.OpenCounts(n); q+s > 0 {
			t.Errorf("%d questions and %d requests and tasks are open", q, s)
		}
	}
	trip(caller)
	testbus.Await(t, func() bool { return testbus.OpenFiles(t) <= files })
}

// TestCancelWhenHostIsStopped: a canceled submit does not wait for a stopped host, and a request
// that it had started is aborted.
func TestCancelWhenHostIsStopped(t *testing.T) {
	h, cmd := hostAloneAs(t, "host of a stage")
	n := h.join(t, node.JoinOptions{})
	stopProcess(t, cmd.Process)
	defer mustContinue(t, cmd.Process)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		if _, err := n.Submit(ctx, "x"); !errors.Is(err, context.Canceled) {
			t.Errorf("submit: %v, want the context's error", err)
		}
	}
	mustContinue(t, cmd.Process)
	testbus.Await(t, func() bool { return statsOf(t, n).Live == 0 })
	if q, s := node.OpenCounts(n); q+s > 0 {
		t.Errorf("%d questions and %d requests are open", q, s)
	}
}

func mustContinue(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

func statsOf(t *testing.T, n *node.Node) (s bus.Stats) {
	t.Helper()
	answer, err := n.Call(t.Context(), "stats", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(answer, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// errTooLate ends the stage's work in an attempt whose deadline passed before the host was stopped.
var errTooLate = errors.New("the deadline was over when the host was stopped")

// waitForStop signals that the handler has begun, and waits until the host is stopped.
func waitForStop(t *bus.Task, began chan<- struct{}, stopped <-chan bool) error {
	select {
	case began <- struct{}{}:
		if !<-stopped {
			return errTooLate
		}
		return nil
	case <-t.Context().Done(): // the deadline passed before the handler began
		return t.Context().Err()
	}
}

// stopHostInRequest starts a request with a deadline, and stops the host after the stage has begun
// and before the deadline. It tries longer deadlines until that succeeds. The stopped host has not
// reported the outcome of the request.
func stopHostInRequest(t *testing.T, caller *node.Node, host *os.Process, began <-chan struct{}, stopped chan<- bool, in []byte) *bus.Request {
	t.Helper()
	for limit := 500 * time.Millisecond; ; limit *= 2 {
		deadline := time.Now().Add(limit)
		r, err := caller.Stream(t.Context(), bus.WithDeadline(deadline))
		if errors.Is(err, bus.ErrDeadline) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		if err := r.Input(t.Context()).EmitBytes(in); err != nil && !errors.Is(err, bus.ErrDeadline) {
			t.Fatal(err)
		}
		select {
		case <-began:
		case <-r.Done():
			continue
		}
		stopProcess(t, host)
		inTime := time.Now().Before(deadline)
		if !inTime {
			mustContinue(t, host)
		}
		if stopped <- inTime; inTime {
			return r
		}
	}
}
