package node_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// BenchmarkDirect sends 64 bytes from one node to another and back, on the direct path. All run in
// one process.
func BenchmarkDirect(b *testing.B) {
	h := serveAll(b, testbus.Linear(pass("a")), bus.Options{})
	n := h.join(b, node.JoinOptions{})
	r, err := n.Stream(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	payload := make([]byte, 64)
	trip := func() {
		if err := r.Input(b.Context()).EmitBytes(payload); err != nil {
			b.Fatal(err)
		}
		d, err := r.Recv(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		_ = d.Finish(nil)
	}
	for range 4 {
		trip()
	}
	for b.Loop() {
		trip()
	}
}

// BenchmarkDirectOneWay sends 64 bytes to another node, which reads them.
func BenchmarkDirectOneWay(b *testing.B) {
	read := make(chan struct{})
	h := serveAll(b, testbus.Linear(bus.StageSpec{Name: "a", Handle: func(_ *bus.Task, d *bus.Delivery) error {
		if d.EOS {
			close(read)
		}
		return nil
	}}), bus.Options{})
	n := h.join(b, node.JoinOptions{})
	r, err := n.Stream(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	payload := make([]byte, 64)
	in := r.Input(b.Context())
	for b.Loop() {
		if err := in.EmitBytes(payload); err != nil {
			b.Fatal(err)
		}
	}
	if err := in.EmitBytes(payload, bus.Last()); err != nil {
		b.Fatal(err)
	}
	<-read
}
