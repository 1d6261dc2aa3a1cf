package ledger

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

	// In the host: those references that are no reminders, see Remind, and who counts them.
	reads atomic.Int32
	by    Counter // nil: it is not asked for

	// In a node: which process gave it, by which number, and whether that knows that the
	// payload is passed on.
	from Giver
	id   uint32
	lent atomic.Bool
}

// Giver is the process that has given a payload to this one.
type Giver interface {
	// Lend tells it that others may read the payload when this process is dead. It reports
	// whether the message was sent.
	Lend(number uint32) bool
	// Leaving reports whether this process says goodbye, or has lost its host.
	Leaving() bool
}

// OnHeap makes bytes that lie in no segment a payload with one reference.
func OnHeap(data []byte, free func()) *Payload {
	p := &Payload{data: data, free: free}
	p.refs.Store(1)
	p.reads.Store(1)
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

// Given notes that a process has given the payload, by so which number. It is for the one
// that makes the payload, before others have it.
func (p *Payload) Given(from Giver, number uint32) { p.from, p.id = from, number }

// GivenBy is the number under which the payload came from there, if it did.
func (p *Payload) GivenBy(from Giver) (number uint32, given bool) {
	if p == nil || p.from != from {
		return 0, false
	}
	return p.id, true
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

// Before has f called when the payload is freed, before what is to be called so far. It is for
// the one that makes the payload, before others have it.
func (p *Payload) Before(f func()) {
	then := p.free
	p.free = func() {
		f()
		then()
	}
}

// After is Before behind what is to be called so far; it is for holders of a reference who let
// no other end the last one meanwhile.
func (p *Payload) After(f func()) {
	first := p.free
	p.free = func() {
		first()
		f()
	}
}

// Counter counts, in the host, the payloads that one process has put.
type Counter interface {
	// Unread is called once for a payload, when all references but reminders are gone.
	Unread()
	// Remind counts n reminders more.
	Remind(n int)
}

// CountBy has its references counted. It is for the one that makes the payload, before others
// have it.
func (p *Payload) CountBy(by Counter) { p.by = by }

// Counter is what counts its references; nil: nothing does.
func (p *Payload) Counter() Counter {
	if p == nil {
		return nil
	}
	return p.by
}

// Retain adds references. It is for holders of one.
func (p *Payload) Retain(n int) {
	p.reads.Add(int32(n))
	p.refs.Add(int32(n))
}

// Release ends a reference; nil is of nothing.
func (p *Payload) Release() {
	if p == nil {
		return
	}
	if p.reads.Add(-1) == 0 && p.by != nil {
		p.by.Unread()
	}
	p.drop()
}

// Remind makes a reference, which is the caller's, a reminder: it keeps the payload for others
// that may read it, which is no reason to say that it is read here. Forget ends it.
func (p *Payload) Remind() {
	p.refs.Add(1)
	if p.by != nil {
		p.by.Remind(1) // first: a payload that is not read has been counted as one that is kept
	}
	p.Release()
}

// Forget ends a reminder.
func (p *Payload) Forget() {
	p.drop()
	if p.by != nil {
		p.by.Remind(-1)
	}
}

func (p *Payload) drop() {
	if p.refs.Add(-1) == 0 {
		p.free()
		if p.seg != nil {
			p.seg.Release()
		}
	}
}

// Lend tells the process that gave the payload that others may read it when this process is
// dead. It reports false if the message may be lost, or if no process gave the payload: the
// payload must not be passed on then.
func (p *Payload) Lend() bool {
	if !p.InMemory() || p.from == nil {
		return false
	}
	if !p.lent.Load() && !p.from.Lend(p.id) {
		return false
	}
	p.lent.Store(true)
	return true
}

// Stranded reports whether the payload was passed on by a process that leaves, or whose host has
// hung up, before those that read it are done. It does not learn any more when that is: the
// payload is not its to give back.
func (p *Payload) Stranded() bool {
	return p != nil && p.from != nil && p.lent.Load() && p.from.Leaving()
}
