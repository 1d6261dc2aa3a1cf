package lane

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// benchSlices is the number of parts in which a benchmark is measured. The best counts:
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

// BenchmarkRoundTrip sends 64 bytes to another process and back, by a lane whose receivers poll on
// a processor each, and by Unix sockets in the same run: x-stream and x-packet are how many
// times as long the socket takes. Package internal/peer waits in other ways.
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
			d, _ := startChild(b, "socket", "ladder", tc.network, "")
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
	b.Run("lane/polling", func(b *testing.B) {
		if runtime.NumCPU() < 2 {
			b.Skip("polling needs two processors")
		}
		d, _ := startChild(b, "echo", "polling", unix.SOCK_STREAM, "")
		if err := pin(0); err != nil {
			b.Skip("cannot choose a processor: ", err)
		}
		buf := make([]byte, payloadBytes)
		trip := measure(b, func() error { return roundTrip(d, buf) })
		for name, socket := range sockets {
			b.ReportMetric(float64(socket)/float64(trip), "x-"+name)
		}
	})
}

func roundTrip(d *duplex, buf []byte) error {
	if err := d.TrySend(1, buf); err != nil {
		return err
	}
	if err := d.await(); err != nil {
		return err
	}
	if frame, _, ok := d.Next(); ok {
		copy(buf, frame)
	}
	d.Advance()
	return nil
}
