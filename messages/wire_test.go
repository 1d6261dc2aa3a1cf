package messages_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/messages/omnibuspb"
)

func TestDeliveryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := deliveries().Draw(t, "delivery")
		b, err := want.AppendBinary(nil)
		if err != nil {
			t.Fatalf("AppendBinary: %v", err)
		}
		if len(b) > messages.MaxDeliveryBytes {
			t.Fatalf("a valid delivery takes %d bytes, MaxDeliveryBytes is %d", len(b), messages.MaxDeliveryBytes)
		}
		got, err := messages.ParseDelivery(b)
		if err != nil {
			t.Fatalf("ParseDelivery: %v", err)
		}
		// cmp tells nil from empty, which is the difference between no payload
		// and an empty one.
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("the wire changed the delivery (-want +got):\n%s", diff)
		}
	})
}

// largest is the delivery at every bound at once.
func largest() messages.Delivery {
	d := valid()
	d.Handle = messages.Handle{}
	d.Inline = make([]byte, messages.MaxInlineBytes)
	d.Codec = 1<<32 - 1
	d.Edge = strings.Repeat("e", messages.MaxEdgeBytes)
	d.Key = strings.Repeat("k", messages.MaxKeyBytes)
	d.Trace.State = strings.Repeat("s", messages.MaxTraceStateBytes)
	d.Attrs = map[string]string{}
	for i := range messages.MaxAttrs {
		d.Attrs[fmt.Sprintf("%0*d", messages.MaxAttrKeyBytes, i)] = strings.Repeat("v", messages.MaxAttrValueBytes)
	}
	return d
}

func TestLargestDeliveryPasses(t *testing.T) {
	want := largest()
	b, err := want.AppendBinary(nil)
	if err != nil {
		t.Fatalf("AppendBinary: %v", err)
	}
	got, err := messages.ParseDelivery(b)
	if err != nil {
		t.Fatalf("ParseDelivery of %d bytes: %v", len(b), err)
	}
	if !cmp.Equal(want, got) {
		t.Error("the wire changed the largest delivery")
	}
}

func valid() messages.Delivery {
	return messages.Delivery{
		Request: 1, Epoch: 2, Seq: 3, Dropped: 4, Deadline: 5,
		Handle:  messages.Handle{Store: 6, Gen: 7, Offset: 8, Size: 9, Slot: 10, Codec: 11},
		Attempt: 12,
		Edge:    "a->b",
		Key:     "k",
		EOS:     true,
		Attrs:   map[string]string{"lang": "eo"},
		Trace:   messages.TraceContext{TraceID: [16]byte{13}, SpanID: [8]byte{14}, Flags: 1, State: "v=1"},
	}
}

// The wire form is a contract with other processes and other versions, so one
// message is written out here byte by byte. Encoders may order fields as they
// like, so it is read, not written.
func TestDeliveryWireForm(t *testing.T) {
	wire, err := hex.DecodeString("09" + "0100000000000000" + // request
		"1002" + // epoch
		"1803" + // sequence
		"2204" + "612d3e62" + // edge
		"2a2e" + // handle
		"09" + "0600000000000000" + "11" + "0700000000000000" +
		"19" + "0800000000000000" + "21" + "0900000000000000" +
		"2d" + "0a000000" + "35" + "0b000000" +
		"4001" + // end_of_stream
		"4a01" + "6b" + // key
		"5005" + // deadline_unix_nanos
		"580c" + // attempt
		"6004" + // dropped
		"6a23" + // trace
		"0a10" + "0d" + strings.Repeat("00", 15) + "1208" + "0e" + strings.Repeat("00", 7) + "1801" + "2203" + "763d31" +
		"720a" + "0a04" + "6c616e67" + "1202" + "656f") // attributes
	if err != nil {
		t.Fatal(err)
	}
	got, err := messages.ParseDelivery(wire)
	if err != nil {
		t.Fatalf("ParseDelivery: %v", err)
	}
	if diff := cmp.Diff(valid(), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDeliveryRejects(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n+1) }
	tests := []struct {
		name  string
		spoil func(*messages.Delivery)
		field string
	}{
		{"deadline before 1970", func(d *messages.Delivery) { d.Deadline = -1 }, "deadline_unix_nanos"},
		{"no edge", func(d *messages.Delivery) { d.Edge = "" }, "edge"},
		{"long edge", func(d *messages.Delivery) { d.Edge = long(messages.MaxEdgeBytes) }, "edge"},
		{"edge not UTF-8", func(d *messages.Delivery) { d.Edge = "a\xff" }, "edge"},
		{"long key", func(d *messages.Delivery) { d.Key = long(messages.MaxKeyBytes) }, "key"},
		{"key not UTF-8", func(d *messages.Delivery) { d.Key = "\xc0\xaf" }, "key"},
		{"handle of generation 0", func(d *messages.Delivery) { d.Handle.Gen = 0 }, "payload"},
		{"two payloads", func(d *messages.Delivery) { d.Inline = []byte{} }, "payload"},
		{"no payload before the end", func(d *messages.Delivery) { d.Handle, d.EOS = messages.Handle{}, false }, "payload"},
		{"codec without inline bytes", func(d *messages.Delivery) { d.Codec = 1 }, "inline_codec"},
		{"long inline payload", func(d *messages.Delivery) {
			d.Handle, d.Inline = messages.Handle{}, make([]byte, messages.MaxInlineBytes+1)
		}, "inline"},
		{"attribute without a name", func(d *messages.Delivery) { d.Attrs[""] = "v" }, "attributes"},
		{"long attribute name", func(d *messages.Delivery) { d.Attrs[long(messages.MaxAttrKeyBytes)] = "v" }, "attributes"},
		{"long attribute", func(d *messages.Delivery) { d.Attrs["a"] = long(messages.MaxAttrValueBytes) }, "attributes"},
		{"attribute not UTF-8", func(d *messages.Delivery) { d.Attrs["a"] = "\xff" }, "attributes"},
		{"too many attributes", func(d *messages.Delivery) {
			for i := range messages.MaxAttrs {
				d.Attrs[fmt.Sprint(i)] = ""
			}
		}, "attributes"},
		{"trace without trace id", func(d *messages.Delivery) { d.Trace.TraceID = [16]byte{} }, "trace"},
		{"trace without span id", func(d *messages.Delivery) { d.Trace.SpanID = [8]byte{} }, "trace"},
		{"long trace state", func(d *messages.Delivery) { d.Trace.State = long(messages.MaxTraceStateBytes) }, "trace"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := valid()
			d.Attrs = maps.Clone(d.Attrs)
			tt.spoil(&d)
			prefix := []byte("kept")
			b, err := d.AppendBinary(prefix)
			wantMalformed(t, err, tt.field)
			if string(b) != "kept" {
				t.Errorf("AppendBinary returned %q after an error, want what it was given", b)
			}
		})
	}
}

func wantMalformed(t *testing.T, err error, field string) {
	t.Helper()
	if !errors.Is(err, messages.ErrMalformed) {
		t.Fatalf("error %v, want ErrMalformed", err)
	}
	var typed *messages.MalformedError
	if !errors.As(err, &typed) {
		t.Fatalf("error %v, want a *MalformedError", err)
	}
	if typed.Field != field {
		t.Errorf("error %q names field %q, want %q", err, typed.Field, field)
	}
}

// A peer need not be this program: what Validate forbids a sender is forbidden
// to a receiver too, along with what only a message can get wrong.
func TestFromProtoRejects(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*omnibuspb.Delivery)
		field string
	}{
		{"empty message", func(m *omnibuspb.Delivery) { proto.Reset(m) }, "edge"},
		{"handle of generation 0", func(m *omnibuspb.Delivery) { m.GetHandle().Gen = 0 }, "gen"},
		{"empty handle", func(m *omnibuspb.Delivery) { m.Payload = &omnibuspb.Delivery_Handle{} }, "gen"},
		{"short trace id", func(m *omnibuspb.Delivery) { m.Trace.TraceId = m.GetTrace().GetTraceId()[:15] }, "trace"},
		{"long span id", func(m *omnibuspb.Delivery) { m.Trace.SpanId = append(m.GetTrace().GetSpanId(), 1) }, "trace"},
		{"wide trace flags", func(m *omnibuspb.Delivery) { m.Trace.Flags = 0x100 }, "trace"},
		{"trace of zeros", func(m *omnibuspb.Delivery) {
			m.Trace = &omnibuspb.TraceContext{TraceId: make([]byte, 16), SpanId: make([]byte, 8)}
		}, "trace"},
		{"deadline before 1970", func(m *omnibuspb.Delivery) { m.DeadlineUnixNanos = -1 }, "deadline_unix_nanos"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := messages.ToProto(valid())
			if err != nil {
				t.Fatalf("ToProto: %v", err)
			}
			tt.spoil(m)
			_, err = messages.FromProto(m)
			wantMalformed(t, err, tt.field)
		})
	}
}

func TestParseDeliveryRejectsBytes(t *testing.T) {
	good, err := valid().AppendBinary(nil)
	if err != nil {
		t.Fatalf("AppendBinary: %v", err)
	}
	manyAttrs := good
	for range messages.MaxAttrs {
		manyAttrs = protowire.AppendTag(manyAttrs, 14, protowire.BytesType)
		manyAttrs = protowire.AppendBytes(manyAttrs, []byte{0x0a, 1, 'a', 0x12, 0}) // the same key each time
	}
	tests := []struct {
		name string
		give []byte
	}{
		{"nothing", nil},
		{"half a message", good[:len(good)/2]},
		{"a tag alone", []byte{0x09}},
		{"field number 0", []byte{0x00, 0x00}},
		{"edge as a number", []byte{0x20, 0x01}},
		{"not UTF-8", append(protowire.AppendTag(nil, 4, protowire.BytesType), 1, 0xff)},
		{"over the size bound", make([]byte, messages.MaxDeliveryBytes+1)},
		{"many entries for one attribute", manyAttrs},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := messages.ParseDelivery(tt.give)
			if !errors.Is(err, messages.ErrMalformed) {
				t.Errorf("ParseDelivery = %v, %v; want ErrMalformed", d, err)
			}
		})
	}
}

func TestParseDeliverySkipsUnknownFields(t *testing.T) {
	want := valid()
	b, err := want.AppendBinary(nil)
	if err != nil {
		t.Fatalf("AppendBinary: %v", err)
	}
	b = protowire.AppendTag(b, 1000, protowire.BytesType)
	b = protowire.AppendString(b, "from a newer version")
	got, err := messages.ParseDelivery(b)
	if err != nil {
		t.Fatalf("ParseDelivery: %v", err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseDeliveryCopies(t *testing.T) {
	want := messages.Delivery{Edge: "a->b", Inline: []byte("payload")}
	b, err := want.AppendBinary(nil)
	if err != nil {
		t.Fatalf("AppendBinary: %v", err)
	}
	got, err := messages.ParseDelivery(b)
	if err != nil {
		t.Fatalf("ParseDelivery: %v", err)
	}
	clear(b)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the delivery shares memory with the bytes it was read from (-want +got):\n%s", diff)
	}
}
