package node_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// attachedToHost is the number of nodes of an idle host: one submits, and each of the others
// serves.
const attachedToHost = 10

// idlePipeline sends each input to every serving node.
func idlePipeline() (p bus.Pipeline) {
	for i := range attachedToHost - 1 {
		p.Stages = append(p.Stages, bus.Stage("stage"+strconv.Itoa(i), testbus.Upper))
	}
	return p
}

func init() { roles["host of many"] = hosting(testbus.Remotes(idlePipeline()), bus.Options{}) }

// privateBytes is the memory of a process that it does not share.
func privateBytes(t *testing.T, pid int) (sizeBytes int) {
	t.Helper()
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Skipf("the system does not say what memory a process has: %v", err)
	}
	for line := range bytes.Lines(rollup) {
		words := strings.Fields(string(line))
		if len(words) == 3 && strings.HasPrefix(words[0], "Private_") {
			kibibytes, err := strconv.Atoi(words[1])
			if err != nil {
				t.Fatal(err)
			}
			sizeBytes += kibibytes << 10
		}
	}
	return sizeBytes
}

// racing reports whether this binary has the race detector.
func racing() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return false
	}
	for _, s := range info.Settings {
		if s.Key == "-race" && s.Value == "true" {
			return true
		}
	}
	return false
}

// TestIdleHostIsSmall: a host takes memory for payloads only when it is filled, so that an idle
// host is small.
func TestIdleHostIsSmall(t *testing.T) {
	if racing() {
		t.Skip("the race detector takes as much memory for itself")
	}
	const mostBytes = 16 << 20
	h, host := hostAloneAs(t, "host of many")
	for _, spec := range idlePipeline().Stages {
		h.serve(t, spec)
	}
	n := h.join(t, node.JoinOptions{})
	for range 8 {
		r, err := n.Submit(t.Context(), large("x"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := testbus.Receive(t, r); err != nil || len(got) != attachedToHost-1 {
			t.Fatalf("%d results, %v", len(got), err)
		}
	}
	if got := privateBytes(t, host.Process.Pid); got > mostBytes {
		t.Errorf("an idle host with %d attached has %d bytes of its own, want at most %d", attachedToHost, got, mostBytes)
	}
}
