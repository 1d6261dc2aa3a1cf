package messages_test

import (
	"strings"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/messages"
)

// handles draws any handle that a store could have given out.
func handles() *rapid.Generator[messages.Handle] {
	return rapid.Custom(func(t *rapid.T) messages.Handle {
		return messages.Handle{
			Store:  rapid.Uint64().Draw(t, "store"),
			Gen:    rapid.Uint64Min(1).Draw(t, "gen"),
			Offset: rapid.Uint64().Draw(t, "offset"),
			Size:   rapid.Uint64().Draw(t, "size"),
			Slot:   rapid.Uint32().Draw(t, "slot"),
			Codec:  rapid.Uint32().Draw(t, "codec"),
		}
	})
}

// text draws UTF-8 of minBytes to maxBytes bytes: mostly short, now and then of
// exactly maxBytes.
func text(minBytes, maxBytes int) *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringN(minBytes, 20, maxBytes),
		rapid.Just(strings.Repeat("x", maxBytes)),
	)
}

func traces() *rapid.Generator[messages.TraceContext] {
	return rapid.Custom(func(t *rapid.T) messages.TraceContext {
		var c messages.TraceContext
		if !rapid.Bool().Draw(t, "traced") {
			return c
		}
		copy(c.TraceID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "trace id"))
		copy(c.SpanID[:], rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "span id"))
		c.TraceID[15] |= 1 // not all zero
		c.SpanID[7] |= 1
		c.Flags = rapid.Byte().Draw(t, "flags")
		c.State = text(0, messages.MaxTraceStateBytes).Draw(t, "state")
		return c
	})
}

// deliveries draws any delivery that passes Validate.
func deliveries() *rapid.Generator[messages.Delivery] {
	return rapid.Custom(func(t *rapid.T) messages.Delivery {
		d := messages.Delivery{
			Request:  messages.RequestID(rapid.Uint64().Draw(t, "request")),
			Epoch:    rapid.Uint64().Draw(t, "epoch"),
			Seq:      rapid.Uint64().Draw(t, "seq"),
			Dropped:  rapid.Uint64().Draw(t, "dropped"),
			Deadline: rapid.Int64Min(0).Draw(t, "deadline"),
			Attempt:  rapid.Uint32().Draw(t, "attempt"),
			Edge:     text(1, messages.MaxEdgeBytes).Draw(t, "edge"),
			Key:      text(0, messages.MaxKeyBytes).Draw(t, "key"),
			EOS:      rapid.Bool().Draw(t, "eos"),
			Trace:    traces().Draw(t, "trace"),
		}
		drawPayload(t, &d)
		// A few are enough: TestLargestDeliveryPasses has as many as there may be.
		attrs := rapid.MapOfN(text(1, messages.MaxAttrKeyBytes), text(0, messages.MaxAttrValueBytes), 0, 3).Draw(t, "attrs")
		if len(attrs) > 0 {
			d.Attrs = attrs
		}
		return d
	})
}

func drawPayload(t *rapid.T, d *messages.Delivery) {
	switch rapid.SampledFrom([]string{"handle", "inline", "none"}).Draw(t, "payload") {
	case "handle":
		d.Handle = handles().Draw(t, "handle")
	case "inline":
		d.Inline = rapid.SliceOf(rapid.Byte()).Draw(t, "inline")
		if d.Inline == nil {
			d.Inline = []byte{}
		}
		d.Codec = rapid.Uint32().Draw(t, "codec")
	default:
		d.EOS = true
	}
}
