package bus_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
)

// BenchmarkDirect sends 64 bytes from one node to another and back, past the
// host. All are in one process.
func BenchmarkDirect(b *testing.B) {
	h := host(b, linear(pass("a")), bus.Options{})
	n := h.join(b, bus.JoinOptions{})
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
