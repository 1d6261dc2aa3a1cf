package wire_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestRoundTrip sends random messages of every kind, several
// in one packet.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := allKinds()
		var packet []byte
		var want []wire.Message
		var headers []wire.Header
		for range rapid.IntRange(1, 4).Draw(t, "messages") {
			kind := rapid.SampledFrom(kinds).Draw(t, "kind")
			h := wire.Header{Kind: kind, Descriptors: kind.Descriptors()}
			m := randomMessage(t, kind)
			b, err := wire.Append(packet, m, h.Descriptors)
			if err != nil {
				t.Fatalf("Append(%+v): %v", m, err)
			}
			packet, want, headers = b, append(want, m), append(headers, h)
		}
		for i := range want {
			h, body, rest, err := wire.Next(packet)
			if err != nil {
				t.Fatalf("Next: %v", err)
			}
			if h != headers[i] {
				t.Fatalf("header %+v, want %+v", h, headers[i])
			}
			got, err := wire.Parse(h, body)
			if err != nil {
				t.Fatalf("Parse(%v): %v", h.Kind, err)
			}
			if diff := cmp.Diff(want[i], got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%v (-want +got):\n%s", h.Kind, diff)
			}
			packet = rest
		}
		if len(packet) != 0 {
			t.Fatalf("%d bytes left", len(packet))
		}
	})
}

// TestDecodeAgain decodes into structs that hold another message: none of its values may stay.
func TestDecodeAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(allKinds()).Draw(t, "kind")
		used := randomMessage(t, kind)
		want := randomMessage(t, kind)
		b, err := wire.Append(nil, want, kind.Descriptors())
		if err != nil {
			t.Fatal(err)
		}
		if err := wire.Decode(b[wire.HeaderSize:], used); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, used, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

// TestDecodeSamplesAgain does the same with every two samples of a kind.
func TestDecodeSamplesAgain(t *testing.T) {
	for _, first := range samples() {
		for _, second := range samples() {
			if first.message.Kind() != second.message.Kind() {
				continue
			}
			m := reflect.New(reflect.TypeOf(first.message).Elem()).Interface().(wire.Message)
			for _, s := range []sample{first, second} {
				b, err := wire.Append(nil, s.message, s.descriptors)
				if err == nil {
					err = wire.Decode(b[wire.HeaderSize:], m)
				}
				if err != nil {
					t.Fatalf("%s: %v", s.name, err)
				}
			}
			if diff := cmp.Diff(second.message, m, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s after %s (-want +got):\n%s", second.name, first.name, diff)
			}
		}
	}
}

// TestLaterFields accepts messages that are longer than their fields.
func TestLaterFields(t *testing.T) {
	for _, s := range samples() {
		b, err := wire.Append(nil, s.message, s.descriptors)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, "a later field"...)
		got, err := wire.Parse(wire.Header{Kind: s.message.Kind()}, b[wire.HeaderSize:])
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		}
		if diff := cmp.Diff(s.message, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.name, diff)
		}
	}
}

// TestCutShort refuses every message that lacks its last byte.
func TestCutShort(t *testing.T) {
	for _, s := range samples() {
		b, err := wire.Append(nil, s.message, s.descriptors)
		if err != nil {
			t.Fatal(err)
		}
		body := b[wire.HeaderSize:]
		for n := range body {
			if n > 100 && n < len(body)-100 {
				continue // the middle of something long
			}
			if _, err := wire.Parse(wire.Header{Kind: s.message.Kind()}, body[:n]); !errors.Is(err, wire.ErrProtocol) {
				t.Errorf("%s cut to %d of %d bytes: %v, want ErrProtocol", s.name, n, len(body), err)
			}
		}
	}
}

func TestAppendRefuses(t *testing.T) {
	attrs := func(name, value string) map[string]string { return map[string]string{name: value} }
	many := map[string]string{}
	for i := range wire.MaxAttrs + 1 {
		many[fmt.Sprint(i)] = ""
	}
	tests := []struct {
		name        string
		message     wire.Message
		descriptors int
		want        string
	}{
		{name: "key too long", message: &wire.Put{Key: strings.Repeat("k", 201)}, want: "put.key: text of 201 bytes, and at most 200 are allowed"},
		{name: "name not UTF-8", message: &wire.Serve{Stage: "a\xff"}, want: "serve.stage: text that is not UTF-8"},
		{name: "payload too large", message: &wire.Put{Flags: wire.FlagInline, Size: wire.MaxInline + 1, Payload: make([]byte, wire.MaxInline+1)}, want: "put.payload: 32769 bytes"},
		{name: "arguments too large", message: &wire.Call{Arguments: make([]byte, wire.MaxPiece+1)}, want: "call.arguments: 60001 bytes"},
		{name: "payload without its flag", message: &wire.Put{Payload: []byte("x"), Size: 1}, want: "put.payload: 1 bytes, without the flag"},
		{name: "size of the payload", message: &wire.Deliver{Payload: []byte("x"), Flags: wire.FlagInline}, want: "deliver.payload: 1 bytes, and the size says 0"},
		{name: "too many attributes", message: &wire.Put{Attrs: many}, want: "put.attrs: 33 of them"},
		{name: "attribute without a name", message: &wire.Put{Attrs: attrs("", "v")}, want: "put.attrs: an attribute without a name"},
		{name: "attribute name too long", message: &wire.Put{Attrs: attrs(strings.Repeat("n", 65), "v")}, want: "put.attrs: text of 65 bytes"},
		{name: "attribute value too long", message: &wire.Put{Attrs: attrs("n", strings.Repeat("v", 513))}, want: "put.attrs: text of 513 bytes"},
		{name: "trace state too long", message: &wire.Open{Trace: wire.Trace{State: strings.Repeat("s", 513)}}, want: "open.trace: text of 513 bytes"},
		{name: "outcome zero", message: &wire.Over{}, want: "over.outcome: 0, and only 1 to 5"},
		{name: "policy beyond", message: &wire.Welcome{Inputs: []wire.Edge{{Policy: 3}}}, want: "welcome.inputs: 3, and only 0 to 2"},
		{name: "state beyond", message: &wire.Serving{State: 2}, want: "serving.state: 2, and only 0 to 1"},
		{name: "too many puts for a count", message: &wire.Returned{Puts: make([]uint32, 1<<16)}, want: "returned.puts: 65536 of them"},
		{name: "too many puts for a packet", message: &wire.Returned{Puts: make([]uint32, wire.MaxReturned+1)}, want: "returned of 65538 bytes, and a packet holds at most 65536"},
		{name: "too many edges for a packet", message: &wire.Serving{Outputs: make([]wire.Edge, 4000)}, want: "serving of 68036 bytes"},
		{name: "transport beyond", message: &wire.Serving{Tensors: []wire.Tensors{{Transport: 3}}}, want: "serving.tensors: 3, and only 0 to 2"},
		{name: "side beyond", message: &wire.Introduce{Side: 2}, descriptors: 2, want: "introduce.side: 2, and only 0 to 1"},
		{name: "descriptor missing", message: &wire.Offer{}, want: "offer with 0 descriptors, and it comes with 1"},
		{name: "descriptor too many", message: &wire.Offer{}, descriptors: 2, want: "offer with 2 descriptors, and it comes with 1"},
		{name: "descriptor unwanted", message: &wire.Bye{}, descriptors: 1, want: "bye with 1 descriptors"},
		{name: "descriptors negative", message: &wire.Bye{}, descriptors: -1, want: "bye with -1 descriptors"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := append(make([]byte, 0, 64), "before"...)
			got, err := wire.Append(before, tt.message, tt.descriptors)
			if !errors.Is(err, wire.CodeInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Append: %v; want invalid: %s", err, tt.want)
			}
			if string(got) != "before" {
				t.Errorf("Append returned %q, want what there was before", got)
			}
		})
	}
}

func TestReturnedFits(t *testing.T) {
	b, err := wire.Append(nil, &wire.Returned{Puts: make([]uint32, wire.MaxReturned)}, 0)
	if err != nil || len(b) > wire.MaxPacket {
		t.Errorf("MaxReturned puts: %v, %d bytes", err, len(b))
	}
}

// TestTextIsCut encodes error texts that are too long or not UTF-8.
func TestTextIsCut(t *testing.T) {
	tests := []struct {
		name string
		give string
		want string
	}{
		{name: "fits", give: strings.Repeat("t", 4096), want: strings.Repeat("t", 4096)},
		{name: "one byte too long", give: strings.Repeat("t", 4097), want: strings.Repeat("t", 4096)},
		{name: "cut inside a rune", give: "t" + strings.Repeat("ü", 4096), want: "t" + strings.Repeat("ü", 2047)},
		{name: "not UTF-8", give: "file \xff\xfe not found", want: "file \uFFFD not found"},
		{name: "nothing is UTF-8", give: strings.Repeat("a\xff", 5000), want: strings.Repeat("a\uFFFD", 1024)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			give := &wire.Failed{Code: wire.CodeInternal, Text: tt.give}
			b, err := wire.Append(nil, give, 0)
			if err != nil {
				t.Fatal(err)
			}
			if give.Text != tt.give {
				t.Error("Append changed the message")
			}
			var got wire.Failed
			if err := wire.Decode(b[wire.HeaderSize:], &got); err != nil {
				t.Fatal(err)
			}
			if got.Text != tt.want {
				t.Errorf("%d bytes %.40q, want %d bytes %.40q", len(got.Text), got.Text, len(tt.want), tt.want)
			}
		})
	}
}

func TestNextRefusesLongPacket(t *testing.T) {
	if _, _, _, err := wire.Next(make([]byte, wire.MaxPacket+1)); !errors.Is(err, wire.ErrProtocol) {
		t.Errorf("Next of a packet that is too long: %v, want ErrProtocol", err)
	}
	if _, _, _, err := wire.Next(nil); !errors.Is(err, wire.ErrProtocol) {
		t.Errorf("Next of nothing: %v, want ErrProtocol", err)
	}
}

// TestReservedIsNotLookedAt decodes a message whose reserved bytes are set.
func TestReservedIsNotLookedAt(t *testing.T) {
	want := &wire.Place{Token: 1, Owner: 2, Put: 3, From: "a", To: "b", Key: "k"}
	b, err := wire.Append(nil, want, 0)
	if err != nil {
		t.Fatal(err)
	}
	b[7], b[wire.HeaderSize+8], b[wire.HeaderSize+11] = 1, 2, 3
	h, body, _, err := wire.Next(b)
	if err != nil {
		t.Fatal(err)
	}
	got, err := wire.Parse(h, body)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wire.Message(want), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestKinds holds the table of kinds to the structs and to the protocol.
func TestKinds(t *testing.T) {
	for _, s := range samples() {
		b, err := wire.Append(nil, s.message, s.descriptors)
		if err != nil {
			t.Fatal(err)
		}
		h, body, _, err := wire.Next(b)
		if err != nil {
			t.Fatal(err)
		}
		m, err := wire.Parse(h, body)
		if err != nil {
			t.Fatal(err)
		}
		kind, typ := s.message.Kind(), reflect.TypeOf(s.message)
		if h.Kind != kind || reflect.TypeOf(m) != typ {
			t.Errorf("%v is written as %v and read as %T", typ, h.Kind, m)
		}
		if want := protocolName(t, typ.Elem().Name()); kind.String() != want {
			t.Errorf("%v is named %v, want %s", typ, kind, want)
		}
		if kind.Direction() == 0 {
			t.Errorf("%v has no direction", kind)
		}
	}
	if wire.Kind(0).Known() || wire.Kind(9).Direction() != 0 || wire.Kind(61).String() != "kind 61" || wire.Kind(78).Known() {
		t.Error("numbers that are no kinds are taken for some")
	}
}

func TestCodes(t *testing.T) {
	err := fmt.Errorf("emit: %w", &wire.Error{Code: wire.CodeOver, Text: "request 7 has ended"})
	if !errors.Is(err, wire.CodeOver) || errors.Is(err, wire.CodeClosing) {
		t.Errorf("errors.Is does not see the code of %v", err)
	}
	if got, want := err.Error(), "emit: over: request 7 has ended"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	for code, want := range map[wire.Code]string{wire.OK: "ok", wire.CodeTooLarge: "too large", wire.CodeInternal: "internal", 15: "nothing there", 16: "code 16"} {
		if got := code.String(); got != want {
			t.Errorf("Code %d is %q, want %q", code, got, want)
		}
	}
}

// TestAllocations: encoding and decoding of the most frequent messages do not allocate.
func TestAllocations(t *testing.T) {
	buf := make([]byte, 0, wire.MaxPacket)
	deliver := &wire.Deliver{Source: 1, Delivery: 2, Segment: 3, Size: 1 << 20, Key: "the key"}
	packet, err := wire.Append(nil, deliver, 0)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		do   func() error
	}{
		{name: "append deliver", do: func() error { _, err := wire.Append(buf, deliver, 0); return err }},
		{name: "append finish", do: func() error {
			_, err := wire.Append(buf, &wire.Finish{Delivery: 7}, 0)
			return err
		}},
		{name: "decode deliver", do: func() error {
			_, body, _, err := wire.Next(packet)
			return errors.Join(err, wire.Decode(body, deliver))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := testing.AllocsPerRun(100, func() {
				if err := tt.do(); err != nil {
					t.Fatal(err)
				}
			})
			if n != 0 {
				t.Errorf("%v allocations, want none", n)
			}
		})
	}
}
