package messages

import (
	"fmt"
	"strconv"
	"time"
)

// RequestID names one request; it is unique in one bus.
type RequestID uint64

// String returns the id as 16 hexadecimal digits, the form that logs and
// reports share.
func (id RequestID) String() string { return fmt.Sprintf("%016x", uint64(id)) }

// MarshalText returns the form of String, also in JSON.
func (id RequestID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads up to 16 hexadecimal digits.
func (id *RequestID) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 16, 64)
	if err != nil {
		return fmt.Errorf("messages: %q is no request id: want up to 16 hexadecimal digits", text)
	}
	*id = RequestID(n)
	return nil
}

// Delivery is one message on one edge. It is passed by value; the copies share
// Inline and Attrs, which no goroutine may change once the delivery has been sent.
//
// The holder of a delivery with a Handle owes the store one release. The
// delivery itself does not record the release.
type Delivery struct {
	Request  RequestID         // the request of the delivery
	Seq      uint64            // position in the stream of one request on one edge, from 0
	Dropped  uint64            // deliveries of this stream dropped directly before this one
	Deadline time.Time         // of the request; zero: none
	Handle   Handle            // payload in a store; zero when the payload is inline or absent
	Inline   []byte            // payload outside the store; nil when there is none
	Codec    uint32            // how Inline is encoded (Handle has its own)
	Attempt  uint32            // 0 for the first delivery
	Edge     string            // "from->to"
	Key      string            // the producer's name for the payload, may be empty
	EOS      bool              // last of its stream; may carry no payload
	Attrs    map[string]string // small, travels with the delivery
	Trace    TraceContext      // of the request; zero when it is not traced
}

// String gives the form used in error messages and reports.
func (d Delivery) String() string {
	payload := "no payload"
	switch {
	case !d.Handle.IsZero():
		payload = d.Handle.String()
	case d.Inline != nil:
		payload = fmt.Sprintf("%d bytes inline", len(d.Inline))
	}
	if d.EOS {
		payload += ", end of stream"
	}
	return fmt.Sprintf("delivery(%s request %v seq %d: %s)", d.Edge, d.Request, d.Seq, payload)
}

// TraceContext is the W3C trace context of a request. A stage makes its span a child of
// the span that caused the delivery.
type TraceContext struct {
	TraceID [16]byte
	SpanID  [8]byte
	Flags   byte   // bit 0: sampled
	State   string // the tracestate header, passed on unread
}

// IsZero reports whether the request is not traced.
func (t TraceContext) IsZero() bool { return t == TraceContext{} }
