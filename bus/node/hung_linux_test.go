package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func init() {
	roles["hang"] = func() {
		n, err := node.Join(context.Background(), "child", node.JoinOptions{})
		if err == nil {
			err = n.Serve(context.Background(), bus.StageSpec{Name: os.Getenv(node.EnvStage), State: bus.StateNone, Handle: hangOnce})
		}
		fmt.Fprintln(os.Stderr, "child:", err)
	}
}

// hangOnce emits its input. It hangs at the first attempt of an input that begins with "hang".
func hangOnce(t *bus.Task, d *bus.Delivery) error {
	in, err := bus.Result[string](d)
	if err != nil {
		return err
	}
	if strings.HasPrefix(in, "hang") && d.Attempt == 0 {
		select {}
	}
	n := 1
	if strings.HasPrefix(in, "many") {
		n = 5
	}
	for range n {
		if err := t.Emit(in); err != nil {
			return err
		}
	}
	return nil
}

// hangers start a process that serves the stage m with hangOnce.
var hangers = map[string]func(t *testing.T, h *hosted) *exec.Cmd{
	"Go": func(t *testing.T, h *hosted) *exec.Cmd { return h.childAs(t, "hang", "m") },
	"Python": func(t *testing.T, h *hosted) *exec.Cmd {
		cmd := pythontest.Command(t, "testdata/hung.py")
		cmd.Env = append(cmd.Env, node.EnvSocket+"="+h.path, node.EnvStage+"=m")
		pythontest.Start(t, cmd)
		return cmd
	},
}

// patient is longer than a process stands still on a busy machine.
const patient = 3 * time.Second

// TestHandleTimeout: the host sees a handler of another process that does not return, and the
// process that runs it. After the timeout the input is handled elsewhere.
func TestHandleTimeout(t *testing.T) {
	for name, start := range hangers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := listen(t, testbus.Linear(bus.StageSpec{
				Name: "m", State: bus.StateNone, Attempts: 1, Remote: &bus.Remote{HandleTimeout: patient, FirstTimeout: patient},
			}), bus.Options{})
			hung := start(t, h)
			testbus.Await(t, func() bool { return h.server.Serving("m") == 1 })
			r, err := h.bus.Submit(t.Context(), "hang")
			if err != nil {
				t.Fatal(err)
			}
			testbus.Await(t, func() bool { return len(h.bus.Running()) == 1 })
			seen := h.bus.Running()[0]
			if process := fmt.Sprintf("process %d ", hung.Process.Pid); seen.Stage != "m" || seen.Request != r.ID() || !strings.HasPrefix(seen.Process, process) || seen.Over {
				t.Errorf("the host sees %+v, want that of %q for request %v", seen, process, r.ID())
			}
			start(t, h)
			testbus.MustReceive(t, r, []string{"hang"})
			if st := h.bus.Stats().Stages[0]; st.HandleTimeouts != 1 {
				t.Errorf("%d handlers have timed out, want 1", st.HandleTimeouts)
			}
			_ = hung.Process.Kill() // it may be reading its input until it is dead
		})
	}
}

// TestHandleTimeoutFailsTheRequest: where an input is not repeated, the error names the hanging
// handler, its process, and how long it has run.
func TestHandleTimeoutFailsTheRequest(t *testing.T) {
	h := listen(t, testbus.Linear(bus.StageSpec{
		Name: "m", State: bus.StateNone, Attempts: -1, Remote: &bus.Remote{HandleTimeout: 50 * time.Millisecond, FirstTimeout: 50 * time.Millisecond},
	}), bus.Options{})
	hung := hangers["Go"](t, h)
	testbus.Await(t, func() bool { return h.server.Serving("m") == 1 })
	r, err := h.bus.Submit(t.Context(), "hang")
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Recv(t.Context())
	want := fmt.Sprintf(`stage "m", replica 0, process %d (child): a handler has run for `, hung.Process.Pid)
	if !errors.Is(err, bus.ErrHandleTimeout) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "and may for 50ms") {
		t.Errorf("the request ends with %v, want %q", err, want)
	}
}

// TestFirstTimeout: the first handler of a process has a longer timeout.
func TestFirstTimeout(t *testing.T) {
	h := listen(t, testbus.Linear(bus.StageSpec{
		Name: "m", Remote: &bus.Remote{HandleTimeout: time.Millisecond, FirstTimeout: time.Hour},
	}), bus.Options{})
	first := true
	h.serve(t, bus.Stage("m", func(_ *bus.Task, in string) (string, error) {
		if first {
			first = false
			time.Sleep(50 * time.Millisecond) //nolint:forbidigo // it takes its time
		}
		return in, nil
	}))
	r, err := h.bus.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	testbus.MustReceive(t, r, []string{"x"})
}

// TestWaitForAWindowIsReported: a handler of another process that waits for a window is reported as
// a stall of the edge, and does not time out.
func TestWaitForAWindowIsReported(t *testing.T) {
	for name, start := range hangers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := testbus.NewGate()
			h := listen(t, bus.Pipeline{
				Stages: []bus.StageSpec{
					{Name: "m", State: bus.StateNone, Remote: &bus.Remote{HandleTimeout: patient, FirstTimeout: patient}}, g.Stage("second"),
				},
				Edges: []bus.Edge{{From: "m", To: "second", Window: 1}},
			}, bus.Options{Store: shmstore.Options{ArenaBytes: 8 << 20}})
			start(t, h)
			r, err := h.bus.Submit(t.Context(), "many")
			if err != nil {
				t.Fatal(err)
			}
			<-g.Entered
			n := h.join(t, node.JoinOptions{})
			var waited time.Duration
			testbus.Await(t, func() bool { // for longer than a handler may run
				for _, s := range stallsOf(t, n) {
					if s.Edge == "m->second" && s.Request == r.ID() && strings.Contains(s.Holder, `stage "second"`) {
						waited = s.Waited
					}
				}
				return waited > patient+time.Second
			})
			for range 5 {
				g.Leave <- struct{}{}
			}
			testbus.MustReceive(t, r, []string{"many", "many", "many", "many", "many"})
		})
	}
}

// stallsOf asks the host for the stalls.
func stallsOf(t *testing.T, n *node.Node) (all []bus.Stall) {
	t.Helper()
	answer, err := n.Call(t.Context(), "stalls", nil)
	if err == nil {
		err = json.Unmarshal(answer, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestComputingProcessIsNotStuck: a process whose handler computes with the interpreter lock held
// reads no messages, and is not given up.
func TestComputingProcessIsNotStuck(t *testing.T) {
	t.Parallel()
	h := listen(t, testbus.Linear(bus.StageSpec{Name: "m", State: bus.StateNone, Remote: &bus.Remote{}, MaxInflight: 64}),
		bus.Options{StallTimeout: patient, InlineBytes: 32 << 10, MaxRequests: 64, Store: shmstore.Options{ArenaBytes: 64 << 20}})
	hangers["Python"](t, h)
	all := []*bus.Request{}
	for i := range 40 { // more than a socket holds
		in := "wait"
		if i == 0 {
			in = "compute"
		}
		r, err := h.bus.Submit(t.Context(), in+strings.Repeat(".", 30_000))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	for _, r := range all {
		if got, err := testbus.Receive(t, r); err != nil || len(got) != 1 {
			t.Fatalf("%d results, %v", len(got), err)
		}
	}
}
