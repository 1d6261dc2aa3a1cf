package messages_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/messages"
)

func TestDeliveryString(t *testing.T) {
	tests := []struct {
		name string
		give messages.Delivery
		want string
	}{
		{
			name: "handle",
			give: messages.Delivery{Request: 0xab, Seq: 2, Edge: "a->b", Handle: messages.Handle{Store: 0xf, Gen: 3, Offset: 64, Size: 8, Slot: 5}},
			want: "delivery(a->b request 00000000000000ab seq 2: handle(store f slot 5 gen 3: 8 bytes at 64))",
		},
		{
			name: "inline",
			give: messages.Delivery{Edge: "a->b", Inline: []byte("secret")},
			want: "delivery(a->b request 0000000000000000 seq 0: 6 bytes inline)",
		},
		{
			name: "end of stream",
			give: messages.Delivery{Edge: "a->b", EOS: true},
			want: "delivery(a->b request 0000000000000000 seq 0: no payload, end of stream)",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.give.String(); got != tt.want {
				t.Errorf("String() = %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestTraceContext(t *testing.T) {
	if !(messages.TraceContext{}).IsZero() {
		t.Error("the zero trace is not zero")
	}
	traced := messages.TraceContext{TraceID: [16]byte{1}, SpanID: [8]byte{1}, Flags: 0b10}
	if traced.IsZero() {
		t.Errorf("%+v is zero", traced)
	}
}
