package node_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestStuckProcess: a request that waits for a stopped process fails, and the error names the
// process once, and its state.
func TestStuckProcess(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "first"})), bus.Options{StallTimeout: 50 * time.Millisecond})
	child := h.child(t, "first")
	testbus.Await(t, func() bool { return h.server.Serving("first") == 1 })
	stopProcess(t, child.Process)
	r, err := h.bus.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Recv(t.Context())
	process := fmt.Sprintf("process %d ", child.Process.Pid)
	if err == nil || strings.Count(err.Error(), process) != 1 || !strings.Contains(err.Error(), "which is stopped (SIGSTOP?): it made no progress for 50ms") {
		t.Errorf("got %v, want %q once, and what it does", err, process)
	}
}
