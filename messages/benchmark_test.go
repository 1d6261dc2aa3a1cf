package messages_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/messages"
)

func BenchmarkAppendBinary(b *testing.B) {
	d := valid()
	buf := make([]byte, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.AppendBinary(buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseDelivery(b *testing.B) {
	wire, err := valid().AppendBinary(nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(wire)))
	for b.Loop() {
		if _, err := messages.ParseDelivery(wire); err != nil {
			b.Fatal(err)
		}
	}
}
