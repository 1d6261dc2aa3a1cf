//go:build linux

package host_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/host"
)

// restart is the call restart.
func (r *run) restart(n *node.Node, process string) (host.Restarted, error) {
	r.t.Helper()
	return call[host.Restarted](r.t, n, "restart", fmt.Sprintf(`{"process": %q}`, process))
}

func call[T any](t *testing.T, n *node.Node, method, arguments string) (answer T, err error) {
	t.Helper()
	raw, err := n.Call(t.Context(), method, []byte(arguments))
	if err == nil {
		err = json.Unmarshal(raw, &answer)
	}
	return answer, err
}

// TestRestartByHand: restart replaces a process that works, and one that was given up. Requests go on
// with the new process, and the restart does not count.
func TestRestartByHand(t *testing.T) {
	r := start(t, "stages: [{stage_id: a, omnibus: {exec: [SELF], restart: never}}]")
	r.await("ready: ")
	n := r.join()
	old, err := r.submit(n, "process")
	if err != nil {
		t.Fatal(err)
	}
	restart := func() {
		t.Helper()
		again, err := r.restart(n, "a/0")
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.submit(n, "process")
		if err != nil || got == old || got != strconv.Itoa(again.PID) || again.Process != "a/0" {
			t.Errorf("process %s answers in place of %s (%v), and the call said %+v", got, old, err, again)
		}
		old = got
	}
	restart()
	if _, err := r.submit(n, "crash"); err == nil {
		t.Fatal("the request completed")
	}
	for givenUp := false; !givenUp; {
		s, err := call[host.Status](t, n, "status", "")
		if err != nil {
			t.Fatal(err)
		}
		givenUp = s.Stages[0].GivenUp
		if lines := s.Children[0].Lines; givenUp && (len(lines) != 1 || lines[0] != "no such voice") {
			t.Errorf("the status has the lines %q", lines)
		}
	}
	restart()
	if _, err := r.restart(n, "a/1"); err == nil || !strings.Contains(err.Error(), `has started no process "a/1"`) {
		t.Errorf("a process that is none: %v", err)
	}
	r.stop(nil)
	if text, err := r.wait(); err != nil || !strings.Contains(text, ", 0 restarts;") {
		t.Errorf("the run ended with %v:\n%s", err, text)
	}
}

// TestRestartLetsRequestsEnd: a process that does not handle signals is first told to leave, and
// finishes its requests. It also ends with the host, although it would rejoin.
func TestRestartLetsRequestsEnd(t *testing.T) {
	r := start(t, "stages: [{stage_id: "+simple+", omnibus: {exec: [SELF], grace: 10m}}]")
	r.await("ready: ")
	n := r.join()
	req, err := n.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer req.Close()
	in := req.Input(t.Context())
	receive := func(want string) {
		t.Helper()
		d, err := req.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := string(d.Bytes()); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if err := d.Finish(nil); err != nil {
			t.Error(err)
		}
	}
	if err := in.EmitBytes([]byte("one")); err != nil {
		t.Fatal(err)
	}
	receive("ONE")
	restarted := make(chan error, 1)
	go func() {
		_, err := r.restart(n, simple+"/0")
		restarted <- err
	}()
	r.awaitRetired(n)
	if err := in.EmitBytes([]byte("two"), bus.Last()); err != nil {
		t.Fatal(err)
	}
	receive("TWO")
	if err := <-restarted; err != nil {
		t.Error(err)
	}
	r.stop(nil)
	if text, err := r.wait(); err != nil || strings.Contains(text, "signal") {
		t.Errorf("the run ended with %v:\n%s", err, text)
	}
}

// awaitRetired waits until no process takes work of the first stage.
func (r *run) awaitRetired(n *node.Node) {
	r.t.Helper()
	for serving := 1; serving > 0; {
		s, err := call[host.Status](r.t, n, "status", "")
		if err != nil {
			r.t.Fatal(err)
		}
		serving = s.Stages[0].Serving
	}
}

// TestStageGivenUpAfterRestart: the errors of requests quote the last process of a given-up stage, also
// after a failed restart. That this process ended with status 0 does not make the run succeed.
func TestStageGivenUpAfterRestart(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tries"), []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, `
stages: [{stage_id: a, omnibus: {exec: [sh, -c, 'n=$(cat tries); echo $((n+1)) >tries; case $n in 0) exec SELF;; 1) echo reason B;; *) echo reason C;; esac'], cwd: `+dir+`, max_restarts: 1}}]
`)
	r.await("ready: ")
	n := r.join()
	refused := func(why string) {
		t.Helper()
		for text := ""; !strings.Contains(text, why); {
			_, err := r.submit(n, "hello")
			if err == nil {
				t.Fatal("the request completed")
			}
			if text = err.Error(); !strings.Contains(text, "no process serves it any more") {
				text = ""
			}
		}
	}
	if _, err := r.submit(n, "crash"); err == nil {
		t.Fatal("the request completed")
	}
	refused("given up: 1 restarts within 1m0s; last: exit status 0; its last lines:\n  reason B")
	if _, err := r.restart(n, "a/0"); err == nil || !strings.Contains(err.Error(), "reason C") {
		t.Errorf("the restart ended with %v", err)
	}
	refused("its last lines:\n  reason C")
	r.stop(nil)
	if _, err := r.wait(); err == nil || !strings.Contains(err.Error(), `stage "a" was given up`) || strings.Contains(err.Error(), "omnibus restart") {
		t.Errorf("the run ended with %v", err)
	}
}

// TestRestartWhileItStarts: a process that is restarted by hand before it has served its stage does not end the run.
func TestRestartWhileItStarts(t *testing.T) {
	r := start(t, `
stages:
  - {stage_id: a, omnibus: {exec: [SELF]}}
  - {stage_id: b, engine_input_source: [a], omnibus: {attach: true}}
`)
	r.await("time=")
	n := r.join()
	if _, err := r.restart(n, "a/0"); err != nil {
		t.Error(err)
	}
	r.stop(nil)
	if text, err := r.wait(); err == nil || strings.Contains(err.Error(), "did not start") {
		t.Errorf("the run ended with %v:\n%s", err, text)
	}
}

// TestExitWithZero: a process that ends with status 0 is started again, more often than one that fails.
func TestExitWithZero(t *testing.T) {
	r := start(t, "stages: [{stage_id: a, omnibus: {exec: [SELF], max_restarts: 1}}]")
	r.await("ready: ")
	n := r.join()
	for range 3 {
		if _, err := r.submit(n, "exit"); err == nil || !strings.Contains(err.Error(), "exit status 0") {
			t.Fatalf("the request ended with %v", err)
		}
	}
	if got, err := r.submit(n, "hello"); got != "HELLO" || err != nil {
		t.Errorf("after three restarts: %q, %v", got, err)
	}
}

// TestUnservedStageEndsTheStart: a process that ends the run during the start gets no successor, while
// the processes of other stages take their time to stop.
func TestUnservedStageEndsTheStart(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "deaf")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, strings.ReplaceAll(`
stages:
  - {stage_id: deaf, omnibus: {exec: [SELF], env: {DEAF: FIFO}, grace: 1s}}
  - {stage_id: broken, engine_input_source: [deaf], omnibus: {exec: [SELF], env: {DEAF: FIFO}}}
`, "FIFO", fifo))
	text, err := r.wait()
	if err == nil || !strings.Contains(err.Error(), "no such model") {
		t.Errorf("the run ended with %v", err)
	}
	if n := strings.Count(text, "process=broken/0 event=started"); n != 1 {
		t.Errorf("the process was started %d times:\n%s", n, text)
	}
}
