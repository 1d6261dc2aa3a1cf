package node_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestFiguresOfProcesses: the bus's figures include the lanes of other processes, before and after
// these have left. Only they show the host why tensors travelled in host memory.
func TestFiguresOfProcesses(t *testing.T) {
	h := listen(t, tensorLine(bus.TensorsPool, "make", "read"), tensorHost())
	reader := mustMachine(t)
	h.serveOn(t, reader, reading("read", reader))
	want := lane.Stats{}
	for _, missing := range []map[string]string{{"Words": "for a test"}, nil} {
		m, err := newMachine(missing)
		if err != nil {
			t.Fatal(err)
		}
		maker := h.serveOn(t, m, making("make", m))
		r := testbus.StreamOf(t, h.bus)
		mustTrip(t, r, 3)
		r.Close()
		if missing == nil {
			want.Pool = lane.Sent{Messages: 3, Bytes: 3 * tensorBytes}
		} else {
			want.Fallbacks, want.Default = 3, lane.Sent{Messages: 3, Bytes: 3 * tensorBytes}
		}
		figures := func() lane.Stats {
			all := h.bus.Stats().ProcessTensors
			return lane.Stats{Default: all.Default, Pool: all.Pool, Fallbacks: all.Fallbacks}
		}
		if missing == nil { // sent after figuresDelay
			testbus.Await(t, func() bool { return figures() == want })
		}
		if err := maker.Close(t.Context()); err != nil { // the remaining counts are sent by Close
			t.Fatal(err)
		}
		testbus.Await(t, func() bool { return len(h.server.Processes()) == 1 })
		if got := figures(); got != want {
			t.Fatalf("when it is gone: %+v, want %+v", got, want)
		}
	}
	if own := h.bus.Stats().Tensors; own != (lane.Stats{}) {
		t.Errorf("the host has counted %+v itself", own)
	}
}

// TestInvalidFiguresAreRefused: a process cannot make the bus's figures overflow or shrink.
func TestInvalidFiguresAreRefused(t *testing.T) {
	h := listen(t, tensorLine(bus.TensorsPool, "make", "read"), tensorHost())
	n := h.join(t, node.JoinOptions{})
	for _, bad := range []string{"", "no JSON", `{"fallbacks":-1}`, `{"open":-1}`, `{"cuda_ipc_pool":{"bytes":9223372036854775807}}`, `{"spilt":1e300}`} {
		_, err := n.Call(t.Context(), "tensors", []byte(bad))
		if err == nil || !strings.Contains(err.Error(), "arguments of tensors") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if got := h.bus.Stats().ProcessTensors; got != (lane.Stats{}) {
		t.Errorf("counted %+v", got)
	}
}

// TestDeadProcessHasNothingOpen: the counts of a process stay after it has left, except its open
// tensors.
func TestDeadProcessHasNothingOpen(t *testing.T) {
	h := listen(t, tensorLine(bus.TensorsPool, "make", "read"), tensorHost())
	n := h.join(t, node.JoinOptions{})
	want := lane.Stats{Spilt: 2, Open: 3}
	if _, err := n.Call(t.Context(), "tensors", []byte(`{"spilt":2,"open":3}`)); err != nil || h.bus.Stats().ProcessTensors != want {
		t.Fatalf("%+v, %v", h.bus.Stats().ProcessTensors, err)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return len(h.server.Processes()) == 0 })
	want.Open = 0
	if got := h.bus.Stats().ProcessTensors; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestLatestFiguresCount: only the last figures of a process count, however quickly they follow
// each other.
func TestLatestFiguresCount(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"})), bus.Options{})
	c := dialThin(t, h.path)
	c.await(wire.KindWelcome)
	const times = 300
	for n := range times {
		c.send(&wire.Call{Token: uint32(n), Method: "tensors", Arguments: fmt.Appendf(nil, `{"spilt":%d}`, n)})
	}
	for range times {
		c.await(wire.KindReply)
	}
	if got := h.bus.Stats().ProcessTensors.Spilt; got != times-1 {
		t.Errorf("%d counts, of those up to %d", got, times-1)
	}
}
