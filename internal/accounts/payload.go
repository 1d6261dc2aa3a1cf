package accounts

import (
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Payload is a payload that lies outside the bus's store: in memory that another process
// writes, in a segment of its own, or on the heap. The deliveries of one payload share it and
// count their references.
type Payload struct {
	seg    *Segment // nil: on the heap
	offset int64
	data   []byte
	refs   atomic.Int32
	free   func() // called once, with the last reference

	// In a node: the process that has sent the payload, and its number there.
	origin       any
	originNumber uint32
}

// OnHeap makes a payload of bytes that lie in no segment, with one reference.
func OnHeap(data []byte, free func()) *Payload {
	p := &Payload{data: data, free: free}
	p.refs.Store(1)
	return p
}

// AloneIn makes a payload of the first size bytes of a segment, which has no other payload.
func AloneIn(mem *shmstore.Segment, size int, free func()) *Payload {
	s := newSegment(mem)
	defer s.Release() // the payload keeps it
	return s.Payload(0, size, free)
}

// Copied copies a payload from the heap into a segment of its own, so that other processes can
// read it.
func Copied(data []byte) (*Payload, error) {
	mem, err := shmstore.NewSegment("payload", int64(len(data)))
	if err != nil {
		return nil, err
	}
	codec.Copy(mem.Bytes(), data)
	return AloneIn(mem, len(data), func() {}), nil
}

// SetOrigin notes which process has sent the payload, and its number there. The goroutine that
// makes the payload calls it, before other goroutines have the payload.
func (p *Payload) SetOrigin(from any, number uint32) { p.origin, p.originNumber = from, number }

// NumberFrom is the number of the payload at the process that has sent it, if that is from.
func (p *Payload) NumberFrom(from any) (number uint32, given bool) {
	if p == nil || p.origin != from {
		return 0, false
	}
	return p.originNumber, true
}

// Bytes is the payload in this process, for reading.
func (p *Payload) Bytes() []byte { return p.data }

// Segment is the memory of the payload; nil: it is on the heap.
func (p *Payload) Segment() *Segment { return p.seg }

// Offset is where the payload begins in its segment, in bytes.
func (p *Payload) Offset() uint64 { return uint64(p.offset) }

// InMemory reports whether other processes can read the payload; false for nil.
func (p *Payload) InMemory() bool { return p != nil && p.seg != nil }

// Shared reports whether the payload has more than one reference.
func (p *Payload) Shared() bool { return p.refs.Load() > 1 }

// BeforeFree adds f to the functions called when the payload is freed, as the first. The goroutine
// that makes the payload calls it, before other goroutines have the payload.
func (p *Payload) BeforeFree(f func()) {
	then := p.free
	p.free = func() {
		f()
		then()
	}
}

// AfterFree adds f to the functions called when the payload is freed, as the last. The caller holds
// a reference, and makes sure that no other goroutine releases the last one meanwhile.
func (p *Payload) AfterFree(f func()) {
	first := p.free
	p.free = func() {
		first()
		f()
	}
}

// Retain adds n references. The caller holds one.
func (p *Payload) Retain(n int) { p.refs.Add(int32(n)) }

// Release ends a reference; on nil it does nothing.
func (p *Payload) Release() {
	if p != nil && p.refs.Add(-1) == 0 {
		p.free()
		if p.seg != nil {
			p.seg.Release()
		}
	}
}
