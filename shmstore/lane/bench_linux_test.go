package lane

import (
	"context"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// benchSlices is in how many parts a benchmark is measured. The best counts:
// other programs on the machine can only make it slower.
const benchSlices = 50

// measure calls trip b.N times and returns the time of one in the best part.
func measure(b *testing.B, trip func() error) time.Duration {
	b.Helper()
	const warmUp = 100
	for range warmUp {
		if err := trip(); err != nil {
			b.Fatal(err)
		}
	}
	n := max(b.N/benchSlices, 1)
	best := time.Duration(1<<63 - 1)
	b.ResetTimer()
	for range benchSlices {
		start := time.Now()
		for range n {
			if err := trip(); err != nil {
				b.Fatal(err)
			}
		}
		best = min(best, time.Since(start)/time.Duration(n))
	}
	b.StopTimer()
	b.ReportMetric(float64(best.Nanoseconds()), "best-ns/op")
	return best
}

// BenchmarkRoundTrip sends 64 bytes to another process and back. Each way of
// waiting is compared with net.Conn over Unix sockets, in the same run:
// x-stream and x-packet are how many times as long the socket takes.
func BenchmarkRoundTrip(b *testing.B) {
	const payloadBytes = 64
	sockets := map[string]time.Duration{}
	for _, tc := range []struct {
		name    string
		network int
	}{
		{name: "stream", network: unix.SOCK_STREAM},
		{name: "packet", network: unix.SOCK_SEQPACKET},
	} {
		b.Run("socket/"+tc.name, func(b *testing.B) {
			d, _ := startChild(b, "socket", Options{}, tc.network, "")
			buf := make([]byte, payloadBytes)
			sockets[tc.name] = measure(b, func() error {
				if _, err := d.socket.Write(buf); err != nil {
					return err
				}
				_, err := d.socket.Read(buf)
				return err
			})
		})
	}
	for _, tc := range []struct {
		role    string
		waiting Waiting
	}{
		{role: "echo", waiting: Parked},
		{role: "echo", waiting: Ladder},
		// Spinning is for who has a processor to spare for each side.
		{role: "pinned", waiting: Spinning},
	} {
		b.Run("lane/"+tc.waiting.String(), func(b *testing.B) {
			d, _ := startChild(b, tc.role, Options{Waiting: tc.waiting}, unix.SOCK_STREAM, "")
			if tc.role == "pinned" {
				if runtime.NumCPU() < 2 {
					b.Skip("spinning needs two processors")
				}
				if err := pin(0); err != nil {
					b.Skip("cannot choose a processor: ", err)
				}
			}
			buf := make([]byte, payloadBytes)
			trip := measure(b, func() error { return roundTrip(d, buf) })
			for name, socket := range sockets {
				b.ReportMetric(float64(socket)/float64(trip), "x-"+name)
			}
		})
	}
}

func roundTrip(d *duplex, buf []byte) error {
	ctx := context.Background()
	if err := d.TrySend(1, buf); err != nil {
		return err
	}
	if err := d.Receiver.Wait(ctx); err != nil {
		return err
	}
	if frame, _, ok := d.Next(); ok {
		copy(buf, frame)
	}
	d.Advance()
	return nil
}
