package actors

import (
	"math/bits"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Extents are kept for payloads of up to 1<<extentMaxLog bytes, one extent for
// each power of two from 1<<extentMinLog on, and hold at most extentBytes and
// extentSlots reservations each.
const (
	extentMinLog = 10
	extentMaxLog = 16
	extentBytes  = 1 << 18
	extentSlots  = 64
)

// Producer reserves space for one source of payloads. Small reservations come
// from extents that the writer granted earlier: most of them cost a few
// nanoseconds instead of a round trip. An extent starts with one reservation and
// doubles each time it runs out, so that a producer of few payloads holds few
// reservations. Large reservations go to the writer one by one.
//
// When a reservation waits for space in the arena, the writer takes back the
// unused reservations of all extents. Until no reservation waits any more, no
// producer keeps an extent.
//
// A Producer is safe for concurrent use. Close it, or its unused reservations
// stay until another reservation waits for space.
type Producer struct {
	w  *Writer
	mu lockorder.Mutex[lockorder.Producer]
	// Guarded by mu.
	class      [extentMaxLog - extentMinLog + 1]extent
	registered bool // in Writer.producers
}

// extent holds reservations of the same size, see classBytes.
type extent struct {
	free      []shmstore.Reservation
	nextCount int // how many to ask for when free is empty; 0: one, as at the start
}

// NewProducer returns a producer without extents.
func (w *Writer) NewProducer() *Producer { return &Producer{w: w} }

// Reserve returns space for size bytes, or for somewhat more. It waits for space
// until done or cancel is closed; either may be nil. The payload's handle will
// carry the codec. The errors are those of Writer.Reserve.
func (p *Producer) Reserve(done, cancel <-chan struct{}, size int, c codec.ID) (shmstore.Reservation, error) {
	if size <= 0 || size > p.w.classBytes(len(p.class)-1) {
		var one [1]shmstore.Reservation
		got, err := p.w.Reserve(done, cancel, one[:0], 1, size, c)
		if err != nil {
			return shmstore.Reservation{}, err
		}
		return got[0], nil
	}
	class := classOf(size)
	r, ok := p.takeFree(class, c)
	if ok {
		return r, nil
	}
	r, err := p.refill(done, cancel, class)
	if err == nil {
		r.SetCodec(c)
	}
	return r, err
}

// ReserveOn returns space for size bytes, with a piece of dev: see
// Writer.ReserveOn. It does not use extents.
func (p *Producer) ReserveOn(done, cancel <-chan struct{}, dev shmstore.Device, deviceBytes int64, size int, c codec.ID) (r shmstore.Reservation, piece uint32, err error) {
	return p.w.ReserveOn(done, cancel, dev, deviceBytes, size, c)
}

// TryReserve reserves from an extent only: it reports false where Reserve would
// have to ask the writer.
func (p *Producer) TryReserve(size int, c codec.ID) (shmstore.Reservation, bool) {
	if size <= 0 || size > p.w.classBytes(len(p.class)-1) {
		return shmstore.Reservation{}, false
	}
	return p.takeFree(classOf(size), c)
}

// classBytes is the size of the reservations of a class: a power of two, or the
// largest object that the store takes if that is less.
func (w *Writer) classBytes(class int) int {
	return int(min(1<<(extentMinLog+class), w.store.MaxObjectBytes()))
}

// classOf is the extent that serves a size.
func classOf(size int) int {
	return max(bits.Len(uint(size-1)), extentMinLog) - extentMinLog
}

func (p *Producer) takeFree(class int, c codec.ID) (shmstore.Reservation, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &p.class[class]
	if len(e.free) == 0 {
		return shmstore.Reservation{}, false
	}
	r := e.free[len(e.free)-1]
	e.free = e.free[:len(e.free)-1]
	r.SetCodec(c)
	return r, true
}

// refill asks the writer for the next extent, and returns the first of its
// reservations: the caller has one even if the others are revoked at once.
func (p *Producer) refill(done, cancel <-chan struct{}, class int) (shmstore.Reservation, error) {
	p.mu.Lock()
	n := max(p.class[class].nextCount, 1)
	p.mu.Unlock()
	got, err := p.w.Reserve(done, cancel, nil, n, p.w.classBytes(class), codec.IDRaw)
	if err != nil {
		return shmstore.Reservation{}, err
	}
	p.keepRest(class, n, got[1:])
	return got[0], nil
}

// keepRest keeps the rest of an extent of n, unless a reservation waits for space.
func (p *Producer) keepRest(class, n int, rest []shmstore.Reservation) {
	bound := min(extentSlots, extentBytes/p.w.classBytes(class))
	p.mu.Lock()
	e := &p.class[class]
	fit := min(len(rest), bound-len(e.free)) // less if several refilled at once
	e.free = append(e.free, rest[:fit]...)
	e.nextCount = min(2*n, bound)
	p.mu.Unlock()
	abort(rest[fit:])

	p.w.register(p) // only now: a revocation in between must find the kept reservations
	if p.w.scarce.Load() {
		p.releaseExtents()
	}
}

func abort(rs []shmstore.Reservation) {
	for i := range rs {
		rs[i].Abort()
	}
}

// Close releases unused reservations. The producer may be used again.
func (p *Producer) Close() {
	p.w.mu.Lock()
	delete(p.w.producers, p)
	p.w.mu.Unlock()
	p.releaseExtents()
}

func (p *Producer) releaseExtents() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.registered = false
	for i := range p.class {
		e := &p.class[i]
		abort(e.free)
		e.free, e.nextCount = e.free[:0], 0
	}
}

func (w *Writer) register(p *Producer) {
	p.mu.Lock()
	listed := p.registered
	p.registered = true
	p.mu.Unlock()
	if listed {
		return
	}
	w.mu.Lock()
	w.producers[p] = struct{}{}
	w.mu.Unlock()
}

// revokeExtents takes back the unused reservations of every producer's extents.
func (w *Writer) revokeExtents() {
	w.mu.Lock()
	all := make([]*Producer, 0, len(w.producers))
	for p := range w.producers {
		all = append(all, p)
	}
	clear(w.producers)
	w.mu.Unlock()
	for _, p := range all {
		p.releaseExtents()
	}
}

// SpaceBytes is how many bytes of the store a reservation of size bytes takes,
// header and alignment apart.
func (w *Writer) SpaceBytes(size int) int {
	if size <= 0 || size > 1<<extentMaxLog {
		return size
	}
	return max(size, w.classBytes(classOf(size)))
}
