package messages

import "unicode/utf8"

// Bounds of the fields beside a payload. A delivery is a small message that
// names a large payload; larger data belongs into the store.
const (
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
)

// ValidateLabels checks the key and the attributes of a payload: the bounds above,
// UTF-8, and that each attribute has a name. It returns a [*MalformedError]
// that names the field.
func ValidateLabels(key string, attrs map[string]string) error {
	if err := checkText("key", key, MaxKeyBytes); err != nil {
		return err
	}
	return checkAttrs(attrs)
}

// ValidateTraceState checks the state of a trace: its bound, and UTF-8. It
// returns a [*MalformedError].
func ValidateTraceState(state string) error { return checkText("trace", state, MaxTraceStateBytes) }

func checkAttrs(attrs map[string]string) error {
	if len(attrs) > MaxAttrs {
		return malformed("attributes", "%d of them, and at most %d are allowed", len(attrs), MaxAttrs)
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

// checkText checks one string of the message. The text itself stays out of the
// error: it may be long, and it may be part of a prompt.
func checkText(field, s string, maxBytes int) error {
	if len(s) > maxBytes {
		return malformed(field, "text of %d bytes, and at most %d are allowed", len(s), maxBytes)
	}
	if !utf8.ValidString(s) {
		return malformed(field, "text that is not UTF-8")
	}
	return nil
}
