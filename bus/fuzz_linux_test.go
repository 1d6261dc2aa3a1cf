package bus_test

import (
	"os"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// FuzzSession sends a host whatever comes to mind, in place of what a client
// should send behind its hello, with a request waiting for a process to serve
// its stage. The host must stay in one piece, and serve others.
func FuzzSession(f *testing.F) {
	packet := func(ms ...wire.Message) []byte {
		var p []byte
		for _, m := range ms {
			var err error
			if p, err = wire.Append(p, wire.Version, m, 0); err != nil {
				f.Fatal(err)
			}
		}
		return p
	}
	serve := &wire.Serve{Token: 1, Stage: "m"}
	f.Add(packet(serve, &wire.Finish{Delivery: 1}, &wire.Ended{Task: 1}))
	f.Add(packet(serve, &wire.Finish{Delivery: 1, Flags: wire.FinishKeep}, &wire.Release{Delivery: 1}))
	f.Add(packet(serve, &wire.Finish{Delivery: 1, Code: wire.CodeInternal, Text: "no"}))
	f.Add(packet(serve, &wire.Emit{Token: 2, Source: 1, Delivery: 1, Edge: wire.AllEdges, Codec: 1, Payload: []byte("x")}))
	f.Add(packet(serve, &wire.Emit{Token: 2, Source: 1, Delivery: 1, Edge: 0, Flags: wire.FlagForward, Codec: 1}))
	f.Add(packet(serve, &wire.Put{Put: 1, Source: 1, Edge: 0, Flags: wire.FlagInline, Codec: 1, Size: 1, Payload: []byte("x")}))
	f.Add(packet(&wire.Arena{Token: 1, Bytes: 1 << 16}, &wire.Sealed{Segment: 1}, &wire.Reserve{Token: 2, Source: 1, Size: 4096}))
	f.Add(packet(&wire.Submit{Token: 1}, &wire.CloseSend{Source: 1}, &wire.AbortRequest{Source: 1}, &wire.Close{Source: 1}))
	f.Add(packet(&wire.Call{Token: 1, Method: "abort", Arguments: []byte(`{"request":1}`)}, &wire.Leave{}))
	f.Add(packet(&wire.Send{Grant: 1, Size: 1}, &wire.Abort{Grant: 1}))
	f.Add([]byte("nonsense"))

	h := listen(f, remotes(linear(bus.Stage("m", upper))), bus.Options{Store: shmstore.Options{ArenaBytes: 1 << 20}})
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) == 0 || len(p) > wire.MaxPacket {
			t.Skip("no packet")
		}
		r := submitAll(t, h.bus, "input")
		conn, err := peer.Dial(t.Context(), h.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, packet := range [][]byte{
			packet(&wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.Version, PID: uint32(os.Getpid())}), p, packet(&wire.Bye{}),
		} {
			if conn.Send(packet, nil) != nil {
				break // it was refused
			}
		}
		buf := make([]byte, wire.MaxPacket)
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		for err == nil { // until the host hangs up, as it does after bye and after nonsense
			var n int
			var fds []int
			n, fds, err = conn.Receive(buf)
			for _, fd := range fds {
				_ = os.NewFile(uintptr(fd), "received").Close()
			}
			if os.IsTimeout(err) {
				t.Fatalf("the host neither answered nor hung up, %d bytes", n)
			}
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		r.Close()
	})
}
