package accounts

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// ranges are the parts of a segment that the live payloads of a client occupy, in order.
type ranges struct {
	mu    lockorder.Mutex[lockorder.Ranges]
	spans []span
}

type span struct{ from, to uint64 }

// add notes a payload. It is an error if the payload overlaps another.
func (r *ranges) add(offset, size uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.search(offset)
	for _, other := range r.spans[max(i-1, 0):min(i+1, len(r.spans))] {
		if offset < other.to && other.from < offset+size {
			return fmt.Errorf("%w: %d bytes at %d overlap the payload at %d to %d, which was not returned", wire.ErrProtocol, size, offset, other.from, other.to)
		}
	}
	r.spans = slices.Insert(r.spans, i, span{offset, offset + size})
	return nil
}

// remove removes a payload whose last reference was released.
func (r *ranges) remove(offset uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.search(offset)
	r.spans = slices.Delete(r.spans, i, i+1)
}

// check reports payloads that exceed the segment, or overlap.
func (r *ranges) check(size uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := uint64(0)
	for _, s := range r.spans {
		if s.from < end || s.to <= s.from || s.to > size {
			return fmt.Errorf("a payload lies at %d to %d, behind one that ends at %d, in %d bytes", s.from, s.to, end, size)
		}
		end = s.to
	}
	return nil
}

func (r *ranges) search(offset uint64) int {
	i, _ := slices.BinarySearchFunc(r.spans, offset, func(s span, offset uint64) int { return cmp.Compare(s.from, offset) })
	return i
}
