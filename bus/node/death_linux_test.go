package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func init() {
	roles["serve"] = func() {
		n, err := node.Join(context.Background(), "child", node.JoinOptions{})
		if err == nil {
			err = n.Serve(context.Background(), mortal(os.Getenv(node.EnvStage), n))
		}
		fmt.Fprintln(os.Stderr, "child:", err)
	}
}

// mortal is a stage whose inputs control it: "kill" ends its process at the first attempt,
// "emit-kill" after the first emission, "kill-always" at every attempt. Other inputs, and later
// attempts, are emitted twice.
func mortal(name string, n *node.Node) bus.StageSpec {
	return bus.StageSpec{
		Name: name, State: bus.StateNone,
		Handle: func(t *bus.Task, d *bus.Delivery) error {
			in, err := bus.Result[string](d)
			if err != nil {
				return err
			}
			die := func(when string) {
				if strings.HasPrefix(in, when) && (d.Attempt == 0 || when == "kill-always") {
					_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
					select {} // until it works
				}
			}
			die("kill-always")
			die("kill")
			if err := t.Emit(in + " once"); err != nil {
				return err
			}
			if _, err := n.Call(context.Background(), "stats", nil); err != nil { // the answer comes after the emission
				return err
			}
			die("emit-kill")
			return t.Emit(in + " twice")
		},
	}
}

// child starts a process that serves a stage.
func (h *hosted) child(t testing.TB, stage string) *exec.Cmd {
	t.Helper()
	return h.childAs(t, "serve", stage)
}

// childAs starts a process that serves a stage as a role does.
func (h *hosted) childAs(t testing.TB, role, stage string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+role, node.EnvSocket+"="+h.path, node.EnvStage+"="+stage)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// large is s, padded to a size that does not travel in messages: it lies in shared memory.
func large(s string) string { return s + strings.Repeat(".", 3000) }

func outputs(ins ...string) []string {
	var want []string
	for _, in := range ins {
		want = append(want, large(in)+" once", large(in)+" twice")
	}
	return want
}

// submitAll sends a request with some inputs.
func submitAll(t testing.TB, b testbus.Submitter, ins ...string) *bus.Request {
	t.Helper()
	r := testbus.StreamOf(t, b)
	for _, in := range ins {
		if err := r.Send(t.Context(), large(in)); err != nil && r.Outcome() == bus.Running {
			t.Fatal(err)
		}
	}
	if err := r.CloseSend(t.Context()); err != nil && r.Outcome() == bus.Running { // otherwise Err has the reason
		t.Fatal(err)
	}
	return r
}

func mortalHost(t testing.TB, spec bus.StageSpec) *hosted {
	spec.Name, spec.Remote = "m", &bus.Remote{Routing: bus.Sticky}
	return listen(t, testbus.Linear(spec), bus.Options{Store: shmstore.Options{ArenaBytes: 8 << 20}})
}

// TestKilledReplicaIsReplaced: the unfinished inputs of a killed process are handled by another
// replica, and its emissions for them are not repeated.
func TestKilledReplicaIsReplaced(t *testing.T) {
	h := mortalHost(t, bus.StageSpec{State: bus.StateNone, Replicas: 2})
	h.child(t, "m")
	h.child(t, "m")
	for _, when := range []string{"kill", "emit-kill"} {
		r := submitAll(t, h.bus, "a", when, "b")
		testbus.MustReceive(t, r, outputs("a", when, "b"))
		h.child(t, "m")
	}
}

// TestRequestWaitsForAProcess: a request waits for a process that serves the stage again.
func TestRequestWaitsForAProcess(t *testing.T) {
	h := mortalHost(t, bus.StageSpec{State: bus.StateNone})
	h.child(t, "m")
	r := submitAll(t, h.bus, "a", "kill", "b")
	h.child(t, "m")
	testbus.MustReceive(t, r, outputs("a", "kill", "b"))
}

func TestAttemptsOfProcessesAreBounded(t *testing.T) {
	h := mortalHost(t, bus.StageSpec{State: bus.StateNone, Attempts: 2})
	for range 4 {
		h.child(t, "m")
	}
	testbus.Await(t, func() bool { return h.server.Serving("m") == 4 })
	r := submitAll(t, h.bus, "kill-always")
	_, err := testbus.Receive(t, r)
	var at *bus.StageError
	if !errors.Is(err, bus.ErrProcessDied) || !errors.As(err, &at) || at.Stage != "m" || at.Edge != "->m" {
		t.Fatalf("the request ended with %v", err)
	}
	if left := h.server.Serving("m"); left != 1 {
		t.Fatalf("%d of 4 processes are left: three tries should have cost three", left)
	}
}

// TestStateDiesWithItsProcess: a request whose stage has state fails when the process dies; other
// requests do not. With Replay the request runs again from its first input.
func TestStateDiesWithItsProcess(t *testing.T) {
	for _, replay := range []bool{false, true} {
		t.Run(fmt.Sprint("replay=", replay), func(t *testing.T) {
			h := mortalHost(t, bus.StageSpec{State: bus.StateRequest, Replay: replay, Replicas: 2})
			h.child(t, "m")
			h.child(t, "m")
			r := submitAll(t, h.bus, "a", "emit-kill", "b")
			got, err := testbus.Receive(t, r)
			want := outputs("a", "emit-kill", "b")
			switch {
			case !replay && !errors.Is(err, bus.ErrProcessDied):
				t.Fatalf("the request ended with %v", err)
			case replay && (err != nil || strings.Join(got, "") != strings.Join(want, "")):
				t.Fatalf("%d outputs, %v", len(got), err)
			}
			testbus.MustReceive(t, submitAll(t, h.bus, "c"), outputs("c"))
		})
	}
}

// TestSubmitterDies: the request of a submitter that dies is aborted, and leaves nothing behind.
func TestSubmitterDies(t *testing.T) {
	h := mortalHost(t, bus.StageSpec{State: bus.StateNone})
	h.serve(t, bus.StageSpec{Name: "m", Handle: func(task *bus.Task, d *bus.Delivery) error {
		<-task.Context().Done()
		return nil
	}})
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=submitter", node.EnvSocket+"="+h.path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return h.bus.Stats().Live > 0 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := h.bus.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := h.bus.Stats(); s.Aborted != 1 {
		t.Fatalf("outcomes: %+v", s)
	}
}

func init() {
	roles["submitter"] = func() {
		n, err := node.Join(context.Background(), "submitter", node.JoinOptions{})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		r, err := n.Submit(context.Background(), large("x"))
		if err == nil {
			err = r.Wait(context.Background())
		}
		fmt.Fprintln(os.Stderr, "submitter:", err)
	}
}
