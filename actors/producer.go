package actors

import (
	"math/bits"
	"sync"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Extents are kept for sizes from extentMin to extentMax bytes, one extent for
// each power of two, and hold at most extentBytes and extentSlots each.
const (
	extentMinLog = 10
	extentMaxLog = 16
	extentBytes  = 1 << 18
	extentSlots  = 64
)

// Producer reserves room for one source of payloads. Small reservations come
// from extents that the writer granted earlier, so that most of them cost a
// few nanoseconds instead of a round trip; an extent starts with one
// reservation and doubles each time it runs out, so that who sends little
// holds little. Large reservations go to the writer one by one.
//
// A Producer is safe for concurrent use. Close it, or what it holds stays
// reserved until somebody else waits for room.
type Producer struct {
	w  *Writer
	mu sync.Mutex
	// Guarded by mu. Each class holds reservations of 1<<(extentMinLog+i) bytes.
	class  [extentMaxLog - extentMinLog + 1]extent
	listed bool // in the writer's list of those that hold extents
}

type extent struct {
	free []shmstore.Reservation
	next int // how many to ask for when free is empty
}

// NewProducer returns a producer that holds nothing yet.
func (w *Writer) NewProducer() *Producer { return &Producer{w: w} }

// Reserve returns room for size bytes. It waits for room until done or cancel
// is closed; either may be nil. The codec is what the payload's handle will say
// of its encoding.
func (p *Producer) Reserve(done, cancel <-chan struct{}, size int, c codec.ID) (shmstore.Reservation, error) {
	if size <= 0 || size > 1<<extentMaxLog {
		var one [1]shmstore.Reservation
		got, err := p.w.Reserve(done, cancel, one[:0], 1, size, c)
		if err != nil {
			return shmstore.Reservation{}, err
		}
		return got[0], nil
	}
	class := max(bits.Len(uint(size-1)), extentMinLog) - extentMinLog
	for {
		if r, ok := p.take(class); ok {
			r.SetCodec(c)
			return r, nil
		}
		if err := p.refill(done, cancel, class); err != nil {
			return shmstore.Reservation{}, err
		}
	}
}

func (p *Producer) take(class int) (shmstore.Reservation, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &p.class[class]
	if len(e.free) == 0 {
		return shmstore.Reservation{}, false
	}
	r := e.free[len(e.free)-1]
	e.free = e.free[:len(e.free)-1]
	return r, true
}

func (p *Producer) refill(done, cancel <-chan struct{}, class int) error {
	size := 1 << (extentMinLog + class)
	p.mu.Lock()
	n := max(p.class[class].next, 1)
	p.mu.Unlock()
	got, err := p.w.Reserve(done, cancel, nil, n, size, codec.IDRaw)
	if err != nil {
		return err
	}
	p.mu.Lock()
	e := &p.class[class]
	e.free = append(e.free, got...)
	e.next = min(2*n, extentSlots, extentBytes/size)
	p.mu.Unlock()
	p.w.list(p) // only now: a revocation in between must find what was granted
	return nil
}

// Close gives unused reservations back. The producer may be used again.
func (p *Producer) Close() {
	p.w.mu.Lock()
	delete(p.w.producers, p)
	p.w.mu.Unlock()
	p.giveBack()
}

func (p *Producer) giveBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listed = false
	for i := range p.class {
		e := &p.class[i]
		for j := range e.free {
			e.free[j].Abort()
		}
		e.free, e.next = e.free[:0], 0
	}
}

func (w *Writer) list(p *Producer) {
	p.mu.Lock()
	listed := p.listed
	p.listed = true
	p.mu.Unlock()
	if listed {
		return
	}
	w.mu.Lock()
	w.producers[p] = struct{}{}
	w.mu.Unlock()
}

// revokeExtents takes back what lies unused in every producer's extents.
func (w *Writer) revokeExtents() {
	w.mu.Lock()
	all := make([]*Producer, 0, len(w.producers))
	for p := range w.producers {
		all = append(all, p)
	}
	clear(w.producers)
	w.mu.Unlock()
	for _, p := range all {
		p.giveBack()
	}
}
