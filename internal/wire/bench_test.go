package wire_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// benchmarkMessages are the messages of one delivery, as a stage sees them.
func benchmarkMessages() []wire.Message {
	return []wire.Message{
		&wire.Deliver{Source: 1, Delivery: 2, Codec: 3, Seq: 4, Segment: 5, Offset: 4096, Size: 1 << 20, Key: "chunk-4"},
		&wire.Finish{Delivery: 2},
		&wire.Put{Put: 6, Source: 1, Delivery: 2, Codec: 3, Segment: 1, Offset: 8192, Size: 1 << 16, Key: "chunk-4"},
		&wire.Returned{Puts: []uint32{5, 6}},
	}
}

func BenchmarkAppend(b *testing.B) {
	buf := make([]byte, 0, wire.MaxPacket)
	for _, m := range benchmarkMessages() {
		b.Run(m.Kind().String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := wire.Append(buf, m, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, m := range benchmarkMessages() {
		packet, err := wire.Append(nil, m, 0)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(m.Kind().String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, body, _, err := wire.Next(packet)
				if err == nil {
					err = wire.Decode(body, m)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
