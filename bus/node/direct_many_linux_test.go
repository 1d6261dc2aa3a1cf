package node_test

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// streamAsNewCaller joins a node, streams through the bus, and closes the node.
func (h *hosted) streamAsNewCaller(t *testing.T) {
	t.Helper()
	n, err := node.Join(t.Context(), "caller", node.JoinOptions{Socket: h.path})
	if err != nil {
		t.Fatal(err)
	}
	streamBlocks(t, n, 50, 5000)
	if err := n.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// TestForwarderOutlivesCallers: a process that forwards payloads offers the host the memory of each
// of its callers. It outlives many callers.
func TestForwarderOutlivesCallers(t *testing.T) {
	p := testbus.Remotes(testbus.Linear(forwarding("f"), pass("x")))
	p.Stages[1] = pass("x") // in the host, so that f offers the host each payload that it forwards
	h := listen(t, p, bus.Options{})
	_, served := h.serve(t, forwarding("f"))
	for caller := range 80 {
		h.streamAsNewCaller(t)
		select {
		case err := <-served:
			t.Fatalf("after %d callers the process that forwards was gone: %v", caller+1, err)
		default:
		}
	}
}

// TestForwardedMemoryIsForgotten: the memory of a caller that is gone is unmapped in all processes.
func TestForwardedMemoryIsForgotten(t *testing.T) {
	h := serveAll(t, testbus.Linear(forwarding("f"), pass("x")), bus.Options{})
	mapped := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(maps, []byte("memfd:omnibus"))
	}
	var before int
	for caller := range 20 {
		h.streamAsNewCaller(t)
		if caller == 1 {
			testbus.Await(t, func() bool { return len(h.server.Processes()) == 2 })
			before = mapped()
		}
	}
	testbus.Await(t, func() bool { return mapped() <= before+4 }) // memory of the last caller
}
