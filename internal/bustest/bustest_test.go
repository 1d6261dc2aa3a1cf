package bustest_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/bustest"
)

// TestGate: a gate holds what comes until it is let go, and says so.
func TestGate(t *testing.T) {
	g := bustest.NewGate()
	b := bustest.Open(t, bustest.Windowed(g, bus.Edge{Window: 1}), bus.Options{})
	r := bustest.SendAll(t, b, 2)
	if in := <-g.Entered; in != "0" {
		t.Errorf("%q has come first", in)
	}
	bustest.WaitForStall(t, b, "first->second", 1)
	g.Leave <- struct{}{}
	g.Leave <- struct{}{}
	bustest.MustReceive(t, r, bustest.Numbers(2))
}
