package connector

import (
	"context"
	"errors"
	"sync/atomic"
)

// Health holds the counters of a connector, which start at zero when it is opened.
type Health struct {
	Type   string `json:"type"`
	Open   bool   `json:"open"`
	Puts   uint64 `json:"puts"`
	Gets   uint64 `json:"gets"`
	Inline uint64 `json:"inline_writes"`
	Shared uint64 `json:"shared_writes"`
	// BytesPut and BytesGot count encoded values.
	BytesPut uint64 `json:"bytes_put"`
	BytesGot uint64 `json:"bytes_got"`
	Cleanups uint64 `json:"cleanups"`
	// Missing counts Gets without a value. They are not among Errors.
	Missing uint64 `json:"missing"`
	// Timeouts counts operations that ended with their deadline, and Errors all other failures.
	Timeouts uint64 `json:"timeouts"`
	Errors   uint64 `json:"errors"`
}

type counters struct {
	puts, gets, inline, shared   atomic.Uint64
	bytesPut, bytesGot, cleanups atomic.Uint64
	missing, timeouts, errors    atomic.Uint64
	closed                       atomic.Bool
}

func (c *counters) put(size int, meta Metadata) {
	c.puts.Add(1)
	c.bytesPut.Add(uint64(size)) //nolint:gosec // a length
	if _, ok := meta[metaInline]; ok {
		c.inline.Add(1)
	} else {
		c.shared.Add(1)
	}
}

func (c *counters) got(p Payload) {
	c.gets.Add(1)
	c.bytesGot.Add(uint64(len(p.Bytes())))
}

func (c *counters) failed(err error) {
	switch {
	case errors.Is(err, ErrNotFound):
		c.missing.Add(1)
	case errors.Is(err, context.DeadlineExceeded):
		c.timeouts.Add(1)
	default:
		c.errors.Add(1)
	}
}

// Health returns the connector's counters.
func (c *Connector) Health() Health {
	n := &c.counters
	return Health{
		Type: c.typ, Open: !n.closed.Load(),
		Puts: n.puts.Load(), Gets: n.gets.Load(), Inline: n.inline.Load(), Shared: n.shared.Load(),
		BytesPut: n.bytesPut.Load(), BytesGot: n.bytesGot.Load(), Cleanups: n.cleanups.Load(),
		Missing: n.missing.Load(), Timeouts: n.timeouts.Load(), Errors: n.errors.Load(),
	}
}
