package accounts

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Segment is shared memory for payloads that can be passed on to other processes. It is unmapped
// when its last reference is released: its owner's, or that of a payload.
type Segment struct {
	mem     *shmstore.Segment
	refs    atomic.Int32 // the owner's, and one for each payload
	lasting atomic.Bool  // more payloads may come into it
	views   *Views
	claimed ranges // ranges of CheckedPayloads that must not overlap
	onFree  func() // called once, when the last reference is released; may be nil

	registerOnce sync.Once
	unmap        func(func()) // makes the GPU lane forget the memory, then calls its argument; nil: not registered
}

// Views counts the bytes in one memory whose deliveries are finished and which are still in use:
// processes keep views of them.
type Views struct{ bytes atomic.Int64 }

// Crowded reports whether views take as much of the memory as the windows leave free. From there
// on a payload with credit may wait for space without end: the space comes back only when a process
// releases a view.
func (k *Views) Crowded(freeBytes int64) bool { return k.bytes.Load() >= freeBytes }

func newSegment(mem *shmstore.Segment) *Segment {
	s := &Segment{mem: mem, views: new(Views)}
	s.refs.Store(1)
	return s
}

// Mapped makes a segment of the memory of one payload, with one reference. It owns the memory.
func Mapped(mem *shmstore.Segment) *Segment { return newSegment(mem) }

// Lasting makes a segment of memory for more than one payload, with one reference. It owns the
// memory. gone, if not nil, is called when the last reference is released.
func Lasting(mem *shmstore.Segment, gone func()) *Segment {
	s := newSegment(mem)
	s.onFree = gone
	s.lasting.Store(true)
	return s
}

// Mem is the memory.
func (s *Segment) Mem() *shmstore.Segment { return s.mem }

// CountIn makes v count the views of the segment. The goroutine that makes the segment calls it,
// before other goroutines have the segment.
func (s *Segment) CountIn(v *Views) { s.views = v }

// Lasts reports whether more payloads may come into the segment.
func (s *Segment) Lasts() bool { return s.lasting.Load() }

// Retire notes that no more payloads come into the segment.
func (s *Segment) Retire() { s.lasting.Store(false) }

func (s *Segment) retain() { s.refs.Add(1) }

// Release ends the caller's reference.
func (s *Segment) Release() {
	if s.refs.Add(-1) > 0 {
		return
	}
	if s.onFree != nil {
		s.onFree()
	}
	back := func() { unmapping.close(s.mem) }
	if s.unmap == nil {
		back()
		return
	}
	s.unmap(back)
}

// Register registers the memory with a lane, once, before the first payload in it is used. unmap
// makes the lane forget the memory before it is unmapped. The caller holds a reference.
func (s *Segment) Register(lane func(mem []byte) (unmap func(func()))) {
	s.registerOnce.Do(func() { s.unmap = lane(s.mem.Bytes()) })
}

// Payload makes a payload of the size bytes from offset on, with one reference.
func (s *Segment) Payload(offset int64, size int, free func()) *Payload {
	s.retain()
	p := OnHeap(s.mem.Bytes()[offset:offset+int64(size):offset+int64(size)], free)
	p.seg, p.offset = s, offset
	return p
}

// CheckedPayload is Payload for an offset and a size from another process. The error is
// wire.ErrProtocol if they do not fit into the segment. With alone, payloads may not overlap; the
// range of this one is free again before free is called.
func (s *Segment) CheckedPayload(offset, size uint64, alone bool, free func()) (*Payload, error) {
	if most := uint64(s.mem.Size()); offset > most || size > most-offset {
		return nil, fmt.Errorf("%w: %d bytes at %d of a segment of %d", wire.ErrProtocol, size, offset, most)
	}
	if !s.mem.Filled(int64(offset + size)) {
		return nil, fmt.Errorf("%w: %d bytes at %d of a segment that has no memory there yet", wire.ErrProtocol, size, offset)
	}
	if !alone || size == 0 {
		return s.Payload(int64(offset), int(size), free), nil
	}
	if err := s.claimed.add(offset, size); err != nil {
		return nil, err
	}
	return s.Payload(int64(offset), int(size), func() {
		s.claimed.remove(offset)
		free()
	}), nil
}
