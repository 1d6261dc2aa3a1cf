package messages

import "unicode/utf8"

// Bounds of the wire form. A delivery is a small message that names a large
// payload; whatever does not fit here belongs into the store.
const (
	// MaxInlineBytes bounds an inline payload.
	MaxInlineBytes = 1 << 20
	// MaxEdgeBytes bounds the name of an edge.
	MaxEdgeBytes = 200
	// MaxKeyBytes bounds the producer's name for a payload.
	MaxKeyBytes = 200
	// MaxAttrs bounds the attributes of one delivery.
	MaxAttrs = 32
	// MaxAttrKeyBytes bounds the name of an attribute.
	MaxAttrKeyBytes = 64
	// MaxAttrValueBytes bounds the value of an attribute.
	MaxAttrValueBytes = 512
	// MaxTraceStateBytes bounds the tracestate header, as W3C Trace Context
	// asks participants to carry at least this much of it.
	MaxTraceStateBytes = 512

	// MaxDeliveryBytes bounds the wire form of a whole delivery. It leaves
	// room for every other bound at once and for fields of newer versions.
	MaxDeliveryBytes = MaxInlineBytes + MaxAttrs*(MaxAttrKeyBytes+MaxAttrValueBytes) + 4<<10
)

// Validate checks d against the rules of the wire form: the bounds above,
// UTF-8, one payload at most. It returns a [*MalformedError] that names the
// field as the schema does. A delivery that stays in its process need not be
// valid, but one that is can leave it.
func (d Delivery) Validate() error {
	if d.Deadline < 0 {
		return malformed("deadline_unix_nanos", "%d is before 1970; 0 means no deadline", d.Deadline)
	}
	if d.Edge == "" {
		return malformed("edge", "empty; every delivery names its edge")
	}
	if err := checkText("edge", d.Edge, MaxEdgeBytes); err != nil {
		return err
	}
	if err := checkPayload(d); err != nil {
		return err
	}
	if err := ValidateLabels(d.Key, d.Attrs); err != nil {
		return err
	}
	return checkTrace(d.Trace)
}

// ValidateLabels checks what a producer says of a payload as [Delivery.Validate] does.
func ValidateLabels(key string, attrs map[string]string) error {
	if err := checkText("key", key, MaxKeyBytes); err != nil {
		return err
	}
	return checkAttrs(attrs)
}

// ValidateTraceState checks the state of a trace as [Delivery.Validate] does.
func ValidateTraceState(state string) error { return checkText("trace", state, MaxTraceStateBytes) }

func checkPayload(d Delivery) error {
	switch {
	case d.Handle.IsZero() && d.Handle != Handle{}:
		return malformed("payload", "a handle of generation 0 with other fields set; generations start at 1")
	case !d.Handle.IsZero() && d.Inline != nil:
		return malformed("payload", "both a handle and inline bytes; a delivery has one payload")
	case d.Handle.IsZero() && d.Inline == nil && !d.EOS:
		return malformed("payload", "none; only the end of a stream may come without one")
	case d.Inline == nil && d.Codec != 0:
		return malformed("inline_codec", "%d without inline bytes; a handle has its own codec", d.Codec)
	case len(d.Inline) > MaxInlineBytes:
		return malformed("inline", "%d bytes, and at most %d are allowed; put the payload into a store", len(d.Inline), MaxInlineBytes)
	}
	return nil
}

func checkAttrs(attrs map[string]string) error {
	if len(attrs) > MaxAttrs {
		return tooManyAttrs(len(attrs))
	}
	for key, value := range attrs {
		if key == "" {
			return malformed("attributes", "an attribute without a name")
		}
		if err := checkText("attributes", key, MaxAttrKeyBytes); err != nil {
			return err
		}
		if err := checkText("attributes", value, MaxAttrValueBytes); err != nil {
			return err
		}
	}
	return nil
}

func tooManyAttrs(n int) error {
	return malformed("attributes", "%d of them, and at most %d are allowed", n, MaxAttrs)
}

// checkTrace follows W3C Trace Context: an id of zeros is no id. A receiver
// that took it for one would join unrelated requests into one trace.
func checkTrace(t TraceContext) error {
	switch {
	case t.IsZero():
		return nil
	case t.TraceID == [16]byte{}:
		return malformed("trace", "trace_id is all zero")
	case t.SpanID == [8]byte{}:
		return malformed("trace", "span_id is all zero")
	}
	return ValidateTraceState(t.State)
}

// checkText checks one string of the message. The text itself stays out of the
// error: it may be long, and it may be somebody's prompt.
func checkText(field, s string, maxBytes int) error {
	if len(s) > maxBytes {
		return malformed(field, "text of %d bytes, and at most %d are allowed", len(s), maxBytes)
	}
	if !utf8.ValidString(s) {
		return malformed(field, "text that is not UTF-8")
	}
	return nil
}
