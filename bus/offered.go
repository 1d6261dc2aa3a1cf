package bus

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// What a client may have offered, with what it has said forget of and payloads still
// lie in. mostOffered bounds the bytes.
const (
	maxOffered     = 4096
	maxNodeOffered = 32 // of those, how many a node names at a time
)

// clientBytes is how much memory the host takes from one client at the least, beside
// its largest payload.
const clientBytes = 1 << 30

// mostBytes bounds the room of one client: with the machine's free memory alone for a
// bound, a client could leave the others nothing.
func (s *session) mostBytes() int64 {
	return max(clientBytes, s.srv.on.arenaBytes)
}

// mostOffered bounds the bytes that the client has offered: its room, and as much as the
// largest payload may have.
func (s *session) mostOffered() int64 { return s.mostBytes() + s.srv.on.mostBytes }

// offeredCount counts the segments that a client has offered and that are mapped.
type offeredCount struct {
	segments, bytes atomic.Int64
	rooms, used     atomic.Int64 // payloads there that are not returned, and their bytes
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

// count counts a segment until it is unmapped.
func (c *offeredCount) count(seg *segment) {
	bytes := seg.mem.Size()
	c.segments.Add(1)
	c.bytes.Add(bytes)
	seg.gone = func() {
		c.segments.Add(-1)
		c.bytes.Add(-bytes)
	}
}

// lies counts a payload there until nobody needs it.
func (c *offeredCount) lies(p *foreign) {
	bytes, free := int64(len(p.data)), p.free
	c.rooms.Add(1)
	c.used.Add(bytes)
	p.free = func() {
		c.rooms.Add(-1)
		c.used.Add(-bytes)
		free()
	}
}

// ranges are the parts of a segment that live payloads of a client lie in, in order.
type ranges struct {
	mu sync.Mutex
	at []span
}

type span struct{ from, to uint64 }

// add notes a payload. It is an error if another lies there.
func (r *ranges) add(offset, size uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.search(offset)
	for _, other := range r.at[max(i-1, 0):min(i+1, len(r.at))] {
		if offset < other.to && other.from < offset+size {
			return fmt.Errorf("%w: %d bytes at %d overlap the payload at %d to %d, which was not returned", wire.ErrProtocol, size, offset, other.from, other.to)
		}
	}
	r.at = slices.Insert(r.at, i, span{offset, offset + size})
	return nil
}

// remove notes that the last reference to a payload is gone.
func (r *ranges) remove(offset uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.search(offset)
	r.at = slices.Delete(r.at, i, i+1)
}

// check reports payloads that do not lie within the segment, or over each other.
func (r *ranges) check(size uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := uint64(0)
	for _, s := range r.at {
		if s.from < end || s.to <= s.from || s.to > size {
			return fmt.Errorf("a payload lies at %d to %d, behind one that ends at %d, in %d bytes", s.from, s.to, end, size)
		}
		end = s.to
	}
	return nil
}

func (r *ranges) search(offset uint64) int {
	i, _ := slices.BinarySearchFunc(r.at, offset, func(s span, offset uint64) int {
		if s.from < offset {
			return -1
		} else if s.from > offset {
			return 1
		}
		return 0
	})
	return i
}

// ownRange notes where a payload lies in the client's own memory, and forgets it before
// the client is told that it is returned. A node may put one payload several times:
// its ranges are not looked at.
func (s *session) ownRange(p *foreign) error {
	size := uint64(len(p.data))
	if size == 0 || !s.thin() {
		return nil
	}
	r, offset, free := &p.seg.puts, uint64(p.offset), p.free
	if err := r.add(offset, size); err != nil {
		return err
	}
	p.free = func() {
		r.remove(offset)
		free()
	}
	return nil
}
