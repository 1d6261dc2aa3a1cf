//go:build linux

package host_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

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

// TestRestartByHand: restart replaces a process that works and one that was given up, the requests go on with the new
// one, and it does not count.
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

// TestNeverServedIsNotStartedAgain: the run that a process has ended starts no other one in its place, while the
// processes of other stages take their time.
func TestNeverServedIsNotStartedAgain(t *testing.T) {
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
