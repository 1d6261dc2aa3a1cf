package bus_test

import (
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// BenchmarkStream streams payloads through four stages in one request: 64 bytes that each
// stage copies, and 1 MiB that is written once and forwarded. An op is one payload through
// all stages. The in-process rows of `make bench-peers` compare the first with channels.
func BenchmarkStream(b *testing.B) {
	for _, each := range []struct {
		name   string
		size   int
		handle bus.Handler
	}{
		{"64B/copied", 64, func(t *bus.Task, d *bus.Delivery) error { return t.EmitBytes(d.Bytes()) }},
		{"1MiB/forwarded", 1 << 20, func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }},
	} {
		b.Run(each.name, func(b *testing.B) {
			var stages []bus.StageSpec
			for i := range 4 {
				stages = append(stages, bus.StageSpec{Name: fmt.Sprint("s", i), Handle: each.handle})
			}
			r, err := testbus.Open(b, testbus.Linear(stages...), bus.Options{}).Stream(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			b.SetBytes(int64(each.size))
			b.ReportAllocs()
			sent := make(chan error, 1)
			b.ResetTimer()
			go func() { sent <- sendPayloads(b, r, b.N, make([]byte, each.size)) }()
			got := 0
			for d, err := range r.Results(b.Context()) {
				if err != nil {
					b.Fatal(err)
				}
				if len(d.Bytes()) != each.size {
					b.Fatalf("a payload of %d bytes", len(d.Bytes()))
				}
				got++
			}
			if err := <-sent; err != nil || got != b.N {
				b.Fatalf("%d of %d payloads came out: %v", got, b.N, err)
			}
		})
	}
}

// sendPayloads writes n copies of a payload into the store, and closes the input.
func sendPayloads(b *testing.B, r *bus.Request, n int, payload []byte) error {
	in := r.Input(b.Context())
	for range n {
		buffer, err := in.Reserve(len(payload), codec.IDRaw)
		if err != nil {
			r.Abort(err)
			return err
		}
		codec.Copy(buffer.Bytes(), payload)
		if err := buffer.Send(len(payload)); err != nil {
			r.Abort(err)
			return err
		}
	}
	return r.CloseSend(b.Context())
}
