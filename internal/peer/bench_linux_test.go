package peer

import (
	"io"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// BenchmarkSender measures a message from Queue to a Receiver, many at a time,
// and as a ratio to one packet for each message.
func BenchmarkSender(b *testing.B) {
	var queued, sent time.Duration
	b.ReportAllocs()
	messages := 0
	for b.Loop() {
		const each = 1000
		queued += transfer(b, each, func(conn *Conn) (func(wire.Message) error, func() error) {
			s, err := NewSender(conn, SenderOptions{})
			if err != nil {
				b.Fatal(err)
			}
			return func(m wire.Message) error { return s.Queue(m) }, s.Close
		})
		sent += transfer(b, each, func(conn *Conn) (func(wire.Message) error, func() error) {
			var packet []byte
			send := func(m wire.Message) (err error) {
				if packet, err = wire.Append(packet[:0], m, 0); err != nil {
					return err
				}
				return conn.Send(packet, nil)
			}
			return send, func() error { return nil }
		})
		messages += each
	}
	b.ReportMetric(float64(queued.Nanoseconds())/float64(messages), "ns/message")
	b.ReportMetric(float64(queued)/float64(sent), "of-packet-each")
}

// transfer sends n messages and returns the time until the last one has arrived.
func transfer(b *testing.B, n int, open func(*Conn) (send func(wire.Message) error, end func() error)) time.Duration {
	from, to, err := Pair()
	if err != nil {
		b.Fatal(err)
	}
	defer to.Close()
	send, end := open(from)
	started := time.Now()
	done := make(chan error, 1)
	go func() {
		r := NewReceiver(to)
		var m wire.Finish
		for {
			_, body, _, err := r.Next()
			if err == nil {
				err = wire.Decode(body, &m)
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	for i := range uint32(n) {
		if err := send(&wire.Finish{Delivery: i}); err != nil {
			b.Fatal(err)
		}
	}
	if err := end(); err != nil {
		b.Fatal(err)
	}
	from.Close()
	if err := <-done; err != io.EOF {
		b.Fatal(err)
	}
	return time.Since(started)
}
