package messages

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/omnibus-runtime/omnibus/messages/omnibuspb"
)

// AppendBinary appends the wire form of d, an omnibus.v1.Delivery, to b. It
// returns [ErrMalformed] when d breaks a rule of the wire form; b is then
// returned as it was. Equal deliveries need not have equal wire forms.
func (d Delivery) AppendBinary(b []byte) ([]byte, error) {
	m, err := ToProto(d)
	if err != nil {
		return b, err
	}
	out, err := proto.MarshalOptions{}.MarshalAppend(b, m)
	if err != nil {
		return b, fmt.Errorf("encode %v: %w", d, err)
	}
	return out, nil
}

// ParseDelivery reads the wire form of a delivery. The result shares no memory
// with b. It returns [ErrMalformed] for bytes that are no delivery, and skips
// fields that it does not know.
func ParseDelivery(b []byte) (Delivery, error) {
	if err := checkWire(b); err != nil {
		return Delivery{}, err
	}
	m := new(omnibuspb.Delivery)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, m); err != nil {
		return Delivery{}, fmt.Errorf("%w: Delivery: %w", ErrMalformed, err)
	}
	return FromProto(m)
}

// attributesField is the number of Delivery.attributes.
const attributesField protowire.Number = 14

// checkWire bounds what decoding b may allocate, before it is decoded. The
// length alone is not enough: a map entry takes a few bytes on the wire and a
// hundred in memory.
func checkWire(b []byte) error {
	if len(b) > MaxDeliveryBytes {
		return malformed("", "%d bytes, and at most %d are allowed", len(b), MaxDeliveryBytes)
	}
	attrs := 0
	for len(b) > 0 {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return fmt.Errorf("%w: Delivery: %w", ErrMalformed, protowire.ParseError(n))
		}
		if number == attributesField {
			attrs++
		}
		b = b[n:]
	}
	if attrs > MaxAttrs {
		return tooManyAttrs(attrs)
	}
	return nil
}

// ToProto translates d into its message. The message shares Inline and Attrs
// with d. It returns [ErrMalformed] when d breaks a rule of the wire form, so
// that the sender's mistake is found at the sender.
func ToProto(d Delivery) (*omnibuspb.Delivery, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	m := &omnibuspb.Delivery{
		Request:           uint64(d.Request),
		Epoch:             d.Epoch,
		Sequence:          d.Seq,
		Edge:              d.Edge,
		InlineCodec:       d.Codec,
		EndOfStream:       d.EOS,
		Key:               d.Key,
		DeadlineUnixNanos: d.Deadline,
		Attempt:           d.Attempt,
		Dropped:           d.Dropped,
		Trace:             traceToProto(d.Trace),
		Attributes:        d.Attrs,
	}
	switch {
	case !d.Handle.IsZero():
		m.Payload = &omnibuspb.Delivery_Handle{Handle: HandleToProto(d.Handle)}
	case d.Inline != nil:
		m.Payload = &omnibuspb.Delivery_Inline{Inline: d.Inline}
	}
	return m, nil
}

// FromProto translates a message into a delivery, which shares the inline
// bytes and the attributes with it. It returns [ErrMalformed] when m breaks a
// rule of the wire form; a nil m is an empty message.
func FromProto(m *omnibuspb.Delivery) (Delivery, error) {
	d := Delivery{
		Request:  RequestID(m.GetRequest()),
		Epoch:    m.GetEpoch(),
		Seq:      m.GetSequence(),
		Dropped:  m.GetDropped(),
		Deadline: m.GetDeadlineUnixNanos(),
		Codec:    m.GetInlineCodec(),
		Attempt:  m.GetAttempt(),
		Edge:     m.GetEdge(),
		Key:      m.GetKey(),
		EOS:      m.GetEndOfStream(),
	}
	if attrs := m.GetAttributes(); len(attrs) > 0 {
		d.Attrs = attrs
	}
	if err := payloadFromProto(&d, m); err != nil {
		return Delivery{}, err
	}
	var err error
	if d.Trace, err = traceFromProto(m.GetTrace()); err != nil {
		return Delivery{}, err
	}
	if err := d.Validate(); err != nil {
		return Delivery{}, err
	}
	return d, nil
}

func payloadFromProto(d *Delivery, m *omnibuspb.Delivery) error {
	switch p := m.GetPayload().(type) {
	case *omnibuspb.Delivery_Handle:
		h, err := HandleFromProto(p.Handle)
		if err != nil {
			return err
		}
		d.Handle = h
	case *omnibuspb.Delivery_Inline:
		d.Inline = p.Inline
		if d.Inline == nil {
			d.Inline = []byte{}
		}
	}
	return nil
}

// HandleToProto translates a handle into its message. The zero handle is nil.
func HandleToProto(h Handle) *omnibuspb.Handle {
	if h.IsZero() {
		return nil
	}
	return &omnibuspb.Handle{
		Store:  h.Store,
		Gen:    h.Gen,
		Offset: h.Offset,
		Size:   h.Size,
		Slot:   h.Slot,
		Codec:  h.Codec,
	}
}

// HandleFromProto translates a message into a handle. It returns
// [ErrMalformed] for a message that names nothing, nil among them.
func HandleFromProto(m *omnibuspb.Handle) (Handle, error) {
	h := Handle{
		Store:  m.GetStore(),
		Gen:    m.GetGen(),
		Offset: m.GetOffset(),
		Size:   m.GetSize(),
		Slot:   m.GetSlot(),
		Codec:  m.GetCodec(),
	}
	if h.IsZero() {
		return Handle{}, &MalformedError{Message: "Handle", Field: "gen", Reason: "0, and generations start at 1"}
	}
	return h, nil
}

func traceToProto(t TraceContext) *omnibuspb.TraceContext {
	if t.IsZero() {
		return nil
	}
	return &omnibuspb.TraceContext{
		TraceId: t.TraceID[:],
		SpanId:  t.SpanID[:],
		Flags:   uint32(t.Flags),
		State:   t.State,
	}
}

func traceFromProto(m *omnibuspb.TraceContext) (TraceContext, error) {
	var t TraceContext
	if m == nil {
		return t, nil
	}
	if got, want := len(m.GetTraceId()), len(t.TraceID); got != want {
		return t, malformed("trace", "trace_id of %d bytes instead of %d", got, want)
	}
	if got, want := len(m.GetSpanId()), len(t.SpanID); got != want {
		return t, malformed("trace", "span_id of %d bytes instead of %d", got, want)
	}
	if m.GetFlags() > 0xff {
		return t, malformed("trace", "flags %#x do not fit one byte", m.GetFlags())
	}
	copy(t.TraceID[:], m.GetTraceId())
	copy(t.SpanID[:], m.GetSpanId())
	t.Flags = byte(m.GetFlags())
	t.State = m.GetState()
	if t.IsZero() {
		// Present but empty is not the same as absent: see checkTrace.
		return t, malformed("trace", "all zero; leave it out when the request is not traced")
	}
	return t, nil
}
