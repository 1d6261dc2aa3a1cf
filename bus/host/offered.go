package host

import (
	"fmt"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/limits"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// What a client may have offered, with what it has said forget of and payloads still
// lie in. mostOffered bounds the bytes.
const (
	maxOffered = 4096
)

// segmentsShare is the part of the descriptors that the host may open, for the segments that one client offers: the
// host has a descriptor open for each.
const (
	segmentsShare = 4
	minSegments   = 16
)

// mostSegments is how many segments a client is told that it may offer at a time.
func mostSegments() uint16 {
	return uint16(min(max(limits.Files()/segmentsShare, minSegments), maxOffered)) //nolint:gosec // 4,096 at most
}

// clientBytes is how much memory the host takes from one client at the least, beside
// its largest payload.
const minClientBytes = 1 << 30

// mostBytes bounds the room of one client: with the machine's free memory alone for a
// bound, a client could leave the others nothing.
func (s *session) mostBytes() int64 {
	return max(minClientBytes, s.srv.services.ArenaBytes)
}

// mostOffered bounds the bytes that the client has offered: its room, and as much as the
// largest payload may have.
func (s *session) mostOffered() int64 { return s.mostBytes() + s.srv.services.MostBytes }

// offeredCount counts the segments that a client has offered and that are mapped.
type offeredCount struct {
	segments, bytes atomic.Int64
	payloads, used  atomic.Int64 // payloads there that are not returned, and their bytes
}

// mayOffer reports whether the client may offer so many bytes more. It is for the
// session's reader, which alone counts up.
func (s *session) mayOffer(bytes uint64) error {
	n, has, most := s.memory.segments.Load(), s.memory.bytes.Load(), s.mostOffered()
	if n < maxOffered && bytes <= uint64(most) && has+int64(bytes) <= most {
		return nil
	}
	return &wire.Error{Code: wire.CodeOverloaded, Text: fmt.Sprintf(
		"the client offers %d bytes more, beside %d segments of %d bytes together that the host has mapped: a client may have %d segments and %d bytes. "+
			"Let the client copy what others keep views of, or raise large_bytes in the pipeline file", bytes, n, has, maxOffered, most)}
}

// adopt takes memory over that the client offers, and counts it until it is unmapped.
func (c *offeredCount) adopt(mem *shmstore.Segment) *accounts.Segment {
	bytes := mem.Size()
	c.segments.Add(1)
	c.bytes.Add(bytes)
	return accounts.Lasting(mem, func() {
		c.segments.Add(-1)
		c.bytes.Add(-bytes)
	})
}

// countPayload counts a payload there until nobody needs it.
func (c *offeredCount) countPayload(p *accounts.Payload) {
	bytes := int64(len(p.Bytes()))
	c.payloads.Add(1)
	c.used.Add(bytes)
	p.Before(func() {
		c.payloads.Add(-1)
		c.used.Add(-bytes)
	})
}
