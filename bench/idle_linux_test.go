package bench

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestProcessorPercent: the figure is the processor time of all processes, and an interrupt ends
// a wait.
func TestProcessorPercent(t *testing.T) {
	p, err := startPeer(t.Context(), Options{Peer: testPeer}, peerSpec{Carrier: byNothing}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	pid := p.cmd.Process.Pid
	for used := 0.0; used == 0; {
		if used, err = processorPercent(t.Context(), []int{pid}, time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	one, err := processorTime([]int{pid})
	if err != nil {
		t.Fatal(err)
	}
	if two, err := processorTime([]int{pid, pid}); err != nil || two < 2*one {
		t.Errorf("a process has used %v, and twice the same %v, %v", one, two, err)
	}
	const beyond = 1 << 22 // above all process ids
	if _, err := processorTime([]int{pid, beyond}); err == nil {
		t.Error("a process that does not exist has a processor time")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := processorPercent(ctx, []int{pid}, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
