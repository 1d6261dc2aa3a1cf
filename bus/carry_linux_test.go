package bus_test

import (
	"bytes"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
)

// TestCarriedBetweenProcesses: stages of other processes get and give payloads
// of an edge with a connector like any others; none goes past the host.
func TestCarriedBetweenProcesses(t *testing.T) {
	c := newCarrier(t)
	p := linear(forwarding("a"), forwarding("b"))
	p.Edges[0].Connector = c.connector()
	h := host(t, p, bus.Options{})
	r := streamOf(t, h.bus)
	const inputs = 20
	go func() {
		for i := range inputs {
			if err := r.Input(t.Context()).EmitBytes(block(i, 1+i*i*200)); err != nil {
				t.Error(err)
			}
		}
		if err := r.CloseSend(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for i := range inputs {
		d, err := r.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(d.Bytes(), block(i, 1+i*i*200)) {
			t.Errorf("result %d is not input %d", i, i)
		}
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.puts != inputs {
		t.Errorf("%d payloads of %d went by the connector", c.puts, inputs)
	}
}
