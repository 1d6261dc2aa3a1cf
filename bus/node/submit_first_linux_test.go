package node_test

import (
	"runtime"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestFirstRequestsTogether: the bus for a node's requests is opened once, even when many
// goroutines submit their first request at the same time.
func TestFirstRequestsTogether(t *testing.T) {
	const together, places = 16, 500
	h := listen(t, testbus.Linear(pass("m")), bus.Options{MaxRequests: together})
	// made counts the allocations while so many requests begin.
	made := func(requests int) uint64 {
		n := h.join(t, node.JoinOptions{MaxRequests: places})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begun := make(chan error)
		for range requests {
			go func() {
				r, err := n.Stream(t.Context())
				if err == nil {
					r.Close()
				}
				begun <- err
			}()
		}
		for range requests {
			if err := <-begun; err != nil {
				t.Error(err)
			}
		}
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs
	}
	one, all := made(1), made(together)
	if all > 3*one {
		t.Errorf("%d requests that begin together take %d allocations, and one %d", together, all, one)
	}
}
