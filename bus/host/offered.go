package host

import (
	"fmt"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/limits"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// maxOffered is how many segments of a client may be mapped, including segments that the client has
// forgotten and in which payloads still lie. mostOffered bounds their bytes.
const (
	maxOffered = 4096
)

// One in segmentsShare of the descriptors that the host may open is for the segments that one client
// offers, and minSegments at least: the host keeps a descriptor open for each.
const (
	segmentsShare = 4
	minSegments   = 16
)

// mostSegments is how many segments a client may offer at a time.
func mostSegments() uint16 {
	return uint16(min(max(limits.Files()/segmentsShare, minSegments), maxOffered)) //nolint:gosec // 4,096 at most
}

// minClientBytes is the least memory that the host maps from one client, besides its largest payload.
const minClientBytes = 1 << 30

// mostBytes bounds the memory of one client. Bounded by the machine's free memory alone, a client could
// leave none for other clients.
func (s *session) mostBytes() int64 {
	return max(minClientBytes, s.srv.services.ArenaBytes)
}

// mostOffered bounds the bytes that the client may have offered: its memory, and one payload of the
// largest size.
func (s *session) mostOffered() int64 { return s.mostBytes() + s.srv.services.MostBytes }

// offeredCount counts the segments that a client has offered and that are mapped.
type offeredCount struct {
	segments, bytes atomic.Int64
	payloads, used  atomic.Int64 // payloads in them that are not returned, and their bytes
}

// mayOffer reports whether the client may offer that many more bytes. Only the session's reader, which
// alone adds segments, calls it.
func (s *session) mayOffer(bytes uint64) error {
	n, has, most := s.memory.segments.Load(), s.memory.bytes.Load(), s.mostOffered()
	if n < maxOffered && bytes <= uint64(most) && has+int64(bytes) <= most {
		return nil
	}
	return &wire.Error{Code: wire.CodeOverloaded, Text: fmt.Sprintf(
		"the client offers %d bytes more, beside %d segments of %d bytes together that the host has mapped: a client may have %d segments and %d bytes. "+
			"Let the client copy what others keep views of, or raise large_bytes in the pipeline file", bytes, n, has, maxOffered, most)}
}

// adopt takes over memory that the client offers, and counts it until it is unmapped.
func (c *offeredCount) adopt(mem *shmstore.Segment) *accounts.Segment {
	bytes := mem.Size()
	c.segments.Add(1)
	c.bytes.Add(bytes)
	return accounts.Lasting(mem, func() {
		c.segments.Add(-1)
		c.bytes.Add(-bytes)
	})
}

// countPayload counts a payload until its last reference is dropped.
func (c *offeredCount) countPayload(p *accounts.Payload) {
	bytes := int64(len(p.Bytes()))
	c.payloads.Add(1)
	c.used.Add(bytes)
	p.BeforeFree(func() {
		c.payloads.Add(-1)
		c.used.Add(-bytes)
	})
}
