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

	// In a node: the process that gave it, and the number that it has there.
	origin       any
	originNumber uint32
}

// OnHeap makes bytes that lie in no segment a payload with one reference.
func OnHeap(data []byte, free func()) *Payload {
	p := &Payload{data: data, free: free}
	p.refs.Store(1)
	return p
}

// AloneIn makes the first bytes of a segment the one payload in it.
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

// SetOrigin notes that a process has given the payload, by so which number. It is for the one
// that makes the payload, before others have it.
func (p *Payload) SetOrigin(from any, number uint32) { p.origin, p.originNumber = from, number }

// NumberFrom is the number under which the payload came from there, if it did.
func (p *Payload) NumberFrom(from any) (number uint32, given bool) {
	if p == nil || p.origin != from {
		return 0, false
	}
	return p.originNumber, true
}

// Bytes is the payload in this process, to be read.
func (p *Payload) Bytes() []byte { return p.data }

// Segment is the memory that it lies in; nil: it is on the heap.
func (p *Payload) Segment() *Segment { return p.seg }

// Offset is where in the segment it begins.
func (p *Payload) Offset() uint64 { return uint64(p.offset) }

// InMemory reports whether it lies where other processes can read it; nil does not.
func (p *Payload) InMemory() bool { return p != nil && p.seg != nil }

// Shared reports whether it has more than one reference.
func (p *Payload) Shared() bool { return p.refs.Load() > 1 }

// BeforeFree has f called when the payload is freed, before what is to be called so far. It is for
// the one that makes the payload, before others have it.
func (p *Payload) BeforeFree(f func()) {
	then := p.free
	p.free = func() {
		f()
		then()
	}
}

// AfterFree is Before behind what is to be called so far; it is for holders of a reference who let
// no other end the last one meanwhile.
func (p *Payload) AfterFree(f func()) {
	first := p.free
	p.free = func() {
		first()
		f()
	}
}

// Retain adds references. It is for holders of one.
func (p *Payload) Retain(n int) { p.refs.Add(int32(n)) }

// Release ends a reference; nil is of nothing.
func (p *Payload) Release() {
	if p != nil && p.refs.Add(-1) == 0 {
		p.free()
		if p.seg != nil {
			p.seg.Release()
		}
	}
}
