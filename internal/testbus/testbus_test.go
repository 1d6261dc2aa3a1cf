package testbus_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestGate: a gate announces an input and blocks it until it may leave.
func TestGate(t *testing.T) {
	g := testbus.NewGate()
	b := testbus.Open(t, testbus.Windowed(g, bus.Edge{Window: 1}), bus.Options{})
	r := testbus.SendAll(t, b, 2)
	if in := <-g.Entered; in != "0" {
		t.Errorf("%q has come first", in)
	}
	testbus.WaitForStall(t, b, "first->second", 1)
	g.Leave <- struct{}{}
	g.Leave <- struct{}{}
	testbus.MustReceive(t, r, testbus.Numbers(2))
}
