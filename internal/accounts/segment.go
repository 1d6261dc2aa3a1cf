package accounts

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Segment is shared memory that payloads lie in and that can be passed on to other processes.
// It is unmapped when its owner is gone and no payload in it is needed.
type Segment struct {
	mem     *shmstore.Segment
	refs    atomic.Int32 // the owner's, and one for each payload
	lasting atomic.Bool  // more payloads may come to lie here
	views   *Views
	claimed ranges // of payloads in it, when another process says where they lie
	onFree  func() // called once, with the last reference; nil: nothing is to be done

	registerOnce sync.Once
	unmap        func(func()) // has the GPU lane forget it first; nil: it was never told
}

// Views counts the bytes in one memory whose deliveries are finished, and which are still
// needed: processes keep views of them.
type Views struct{ bytes atomic.Int64 }

// Crowded reports whether they take as much of the memory as windows leave free. From there on
// a payload that has credit need not find room, however long it waits: the room comes back when
// a process lets go of a view, and that may be never.
func (k *Views) Crowded(freeBytes int64) bool { return k.bytes.Load() >= freeBytes }

func newSegment(mem *shmstore.Segment) *Segment {
	s := &Segment{mem: mem, views: new(Views)}
	s.refs.Store(1)
	return s
}

// Mapped takes over memory that one payload lies in, with one reference.
func Mapped(mem *shmstore.Segment) *Segment { return newSegment(mem) }

// Lasting takes over memory that more payloads come to lie in, with one reference. gone is
// called with the last one; nil: nothing is to be done.
func Lasting(mem *shmstore.Segment, gone func()) *Segment {
	s := newSegment(mem)
	s.onFree = gone
	s.lasting.Store(true)
	return s
}

// Mem is the memory.
func (s *Segment) Mem() *shmstore.Segment { return s.mem }

// CountIn has v count what is kept in it. It is for the one that makes the segment, before
// others have it.
func (s *Segment) CountIn(v *Views) { s.views = v }

// Lasts reports whether more payloads may come to lie in it.
func (s *Segment) Lasts() bool { return s.lasting.Load() }

// Retire notes that no more payloads come to lie in it.
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

// Register tells a lane of the memory, once, before the first payload in it is used. What it
// returns has the lane forget the memory before that is unmapped. It is for holders of a
// reference.
func (s *Segment) Register(lane func(mem []byte) (unmap func(func()))) {
	s.registerOnce.Do(func() { s.unmap = lane(s.mem.Bytes()) })
}

// Payload makes the bytes from offset on a payload with one reference.
func (s *Segment) Payload(offset int64, size int, free func()) *Payload {
	s.retain()
	p := OnHeap(s.mem.Bytes()[offset:offset+int64(size):offset+int64(size)], free)
	p.seg, p.offset = s, offset
	return p
}

// CheckedPayload is Payload for bytes of which another process says where they lie: it is
// wire.ErrProtocol where they do not. If alone, no two such payloads may overlap; that this one
// lies there is forgotten before free is called.
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
