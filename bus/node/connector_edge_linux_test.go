package node_test

import (
	"bytes"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestConnectorEdgeBetweenProcesses: stages in other processes receive and emit payloads on an edge
// with a connector as on any edge. No such delivery takes a direct path.
func TestConnectorEdgeBetweenProcesses(t *testing.T) {
	carrier, err := ring.New(ring.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Heap}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // runs after the bus is closed
		if err := carrier.Close(); err != nil {
			t.Errorf("payloads are left in the connector: %v", err)
		}
	})
	p := testbus.Linear(forwarding("a"), forwarding("b"))
	p.Edges[0].Connector = connector.New("Test", carrier.End(), nil)
	h := serveAll(t, p, bus.Options{})
	r := testbus.StreamOf(t, h.bus)
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
	if gets := h.bus.Stats().Edges[0].Connector.Gets; gets != inputs {
		t.Errorf("%d payloads of %d went by the connector", gets, inputs)
	}
}
