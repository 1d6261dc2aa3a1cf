package bus

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	memory "github.com/omnibus-runtime/omnibus/internal/headroom"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Buffer is the memory of one payload, to be filled in place and sent. It belongs
// to one goroutine. Send it or Abort it.
type Buffer struct {
	e           Emitter
	em          Emission
	codec       codec.ID
	size        int     // reserved
	price       int64   // of size, in credit
	edges       []*edge // the targets of the payload, once credit is taken
	reservation shmstore.Reservation
	heap        []byte            // the payload, when it is not in the store; nil: it is in reservation
	lent        *accounts.Payload // where heap lies, when it is memory shared with another process
	first       *Delivery         // made with the buffer, when the payload travels inside the delivery
	void        bool              // the request is over: the payload is not sent
	spilled     bool              // the store had no contiguous space
	ownSegment  bool              // it is larger than an edge's byte window, and has a segment of its own
	unbounded   bool              // no window bounds its bytes on the heap: see ownSegment and Options.Overcommit
	requestHeld bool              // the request is held: see holdRequest
	done        bool
}

// spillAfter is how long a payload waits for space in the store before it goes
// to the heap instead. Its credit is taken, so the store has the bytes; but they
// may be fragments between payloads that are held for long, and the waiting
// request may be the holder. Where processes keep views of so many bytes that the
// store may have no space at all (accounts.Views.Crowded), a payload does not wait.
const spillAfter = 20 * time.Millisecond

// Reserve returns a buffer for a payload of up to size bytes. It waits for credit of each edge.
// A payload that is larger than an edge's byte window waits until all other payloads of its request
// on that edge are finished, and buffers for it are sent or aborted.
func (e Emitter) Reserve(size int, c codec.ID, opts ...EmitOption) (*Buffer, error) {
	b, err := e.reserve(size, c, Emission{}.with(opts))
	if err != nil {
		return nil, err
	}
	return &b, nil
}

func (e Emitter) reserve(size int, c codec.ID, em Emission) (Buffer, error) {
	b := Buffer{e: e, em: em, codec: c, size: size, price: e.out.req.bus.price(size)}
	if size < 0 {
		return b, fmt.Errorf("%w: size %d is negative", ErrPayload, size)
	}
	if err := b.admit(); err != nil {
		return b, err
	}
	if b.void {
		return b, nil
	}
	if size <= e.out.req.bus.mostInline(b.edges) {
		b.reserveInline()
		return b, nil
	}
	b.ownSegment = slices.ContainsFunc(b.edges, func(ed *edge) bool { return ed.exceedsWindow(b.price) })
	err := b.reserveSpace()
	switch {
	case err == nil:
	case e.out.discardsWhenOver():
		b.discardOutput()
		err = nil
	default:
		b.giveCredit()
	}
	return b, err
}

// discardsWhenOver reports whether an emission succeeds without effect because
// the request is over: an actor that serves many requests need not handle the
// end of each.
func (o *outputs) discardsWhenOver() bool {
	return o.task != nil && o.task.stage.shared() && o.req.over()
}

// discardOutput makes b a buffer that is not sent.
func (b *Buffer) discardOutput() {
	b.giveCredit()
	b.void, b.heap = true, make([]byte, b.size)
}

func (b *Buffer) reserveInline() {
	if b.size > smallBytes || len(b.edges) != 1 {
		b.heap = make([]byte, b.size)
		return
	}
	b.first = newDelivery()
	b.heap = b.first.small[:b.size:b.size]
}

// reserveSpace takes space in the store, or on the heap if the store has no
// contiguous space.
func (b *Buffer) reserveSpace() (err error) {
	o := b.e.out
	if err := b.holdRequest(); err != nil {
		return err
	}
	defer func() {
		if err == nil && !b.spilled && o.req.over() { // a lost host may still be reading memory that was released before
			b.reservation.Abort()
			err = o.req.cause()
		}
		if err != nil || b.spilled {
			b.unholdRequest()
		}
	}()
	var ok bool
	if !b.ownSegment {
		if b.reservation, ok = o.producer.TryReserve(b.size, b.codec); ok {
			return nil
		}
	}
	ran := b.e.handlerLock.pause()
	defer b.e.handlerLock.lock(b.e.out.req.id, ran)
	// The first try does not wait: a wait is recorded for reports and needs a timer.
	b.reservation, err = b.reserveInStore(atOnce, nil)
	if errors.Is(err, actors.ErrCanceled) {
		if b.e.cancel == atOnce {
			return ErrCanceled
		}
		b.reservation, err = b.awaitSpace()
	}
	switch {
	case errors.Is(err, actors.ErrCanceled) && o.req.over():
		return o.req.cause()
	case errors.Is(err, actors.ErrCanceled):
		return b.spill()
	case err != nil:
		return fmt.Errorf("reserve %d bytes: %w", b.size, err)
	}
	return nil
}

// reserveInStore reserves space in the store. A payload that is larger than its edge's window gets a
// segment of its own: the windows are sized to fill the arena. MaxLargeBytes of the store and the
// free memory bound it; Store.TrimLarge returns its memory when it is settled. A client offers such a
// segment for one payload alone (wire.FlagOwn). A forwarded payload stays where it lies, also in the
// arena before a smaller window; a payload that then finds no space there is spilt.
func (b *Buffer) reserveInStore(done, cancel <-chan struct{}) (shmstore.Reservation, error) {
	if b.ownSegment {
		return b.e.out.req.bus.writer.ReserveAlone(done, cancel, b.size, b.codec)
	}
	return b.e.out.producer.Reserve(done, cancel, b.size, b.codec)
}

// spill puts the payload on the heap. Where no window bounds its bytes, the machine must have the memory.
func (b *Buffer) spill() error {
	if b.unbounded {
		if s := memory.System().Check(uint64(b.size)); s != nil {
			return fmt.Errorf("%w: %d bytes, and payloads leave no room in the store, which Store.MaxLargeBytes (large_bytes in a file) bounds, nor %s on the heap", shmstore.ErrMemory, b.size, s.Limit)
		}
	}
	b.heap, b.spilled = make([]byte, b.size), true
	return nil
}

// holdRequest keeps the request from being forgotten while its caller's payload takes
// space in the store. A payload of a stage needs no hold: the request has a slot there.
func (b *Buffer) holdRequest() error {
	o := b.e.out
	if o.task != nil {
		return nil
	}
	if !o.req.holdForPayload() {
		return o.req.cause()
	}
	b.requestHeld = true
	return nil
}

func (b *Buffer) unholdRequest() {
	if b.requestHeld {
		b.requestHeld = false
		b.e.out.req.unholdForPayload()
	}
}

// atOnce is closed: a wait that it cancels does not begin.
var atOnce = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

func (b *Buffer) awaitSpace() (shmstore.Reservation, error) {
	o := b.e.out
	b.unbounded = b.ownSegment || o.req.bus.opts.Overcommit
	if o.req.bus.kept.Crowded(int64(len(o.req.bus.store.Arena())) / headroom) {
		return shmstore.Reservation{}, actors.ErrCanceled
	}
	defer o.beginSpaceWait(nil)()
	enough := make(chan struct{})
	timer := time.AfterFunc(o.req.bus.opts.spillAfter, func() { close(enough) })
	defer timer.Stop()
	return b.reserveInStore(o.req.done, enough)
}

// Bytes is the memory to fill. Use [codec.Copy] to copy into it.
func (b *Buffer) Bytes() []byte {
	if b.heap != nil {
		return b.heap
	}
	return b.reservation.Bytes()[:b.size]
}

// fill calls with to fill b, and aborts b if with fails or panics.
func (b *Buffer) fill(with func(dst []byte) error) (err error) {
	filled := false
	defer func() {
		if !filled {
			b.Abort()
		}
	}()
	err = with(b.Bytes())
	filled = err == nil
	return err
}

// Abort releases memory and credit. After Send it does nothing.
func (b *Buffer) Abort() {
	if b.done {
		return
	}
	b.done = true
	if b.heap == nil {
		b.reservation.Abort()
	}
	b.unholdRequest()
	if b.first != nil {
		b.first.recycle()
	}
	b.giveCredit()
}

// Send sends the first n bytes. Options given here add to those of Reserve;
// the edges were chosen there. After an error nothing is left to Abort.
func (b *Buffer) Send(n int, opts ...EmitOption) error {
	if b.done || n < 0 || n > b.size {
		panic(fmt.Sprintf("bus: Send(%d) on a buffer of %d bytes (sent or aborted before: %v)", n, b.size, b.done))
	}
	b.em = b.em.with(opts)
	if err := b.em.check(); err != nil {
		b.Abort()
		return err
	}
	if b.void {
		b.done = true
		return nil
	}
	if b.heap != nil {
		return b.send(messages.Handle{}, b.heap[:n:n])
	}
	h, err := b.reservation.Commit(n, len(b.edges))
	if err != nil {
		b.Abort()
		return fmt.Errorf("commit %d bytes: %w", n, err)
	}
	return b.send(h, nil)
}

// admit takes credit on every edge of the payload, in the order of the edges: so two emissions
// cannot each hold the credit that the other lacks.
func (b *Buffer) admit() error {
	o := b.e.out
	edges, err := o.chosen(b.em)
	if err != nil {
		return err
	}
	for i, ed := range edges {
		if err := b.admitTo(o.req.flow(ed)); err != nil {
			b.edges = edges[:i]
			if o.discardsWhenOver() {
				b.discardOutput()
				return nil
			}
			b.giveCredit()
			return o.emissionError(ed, o.nextSeq(ed), b.em.Key, err)
		}
	}
	b.edges = edges
	return nil
}

// chosen returns the edges of an emission, or why it cannot be sent.
func (o *outputs) chosen(em Emission) ([]*edge, error) {
	if err := em.check(); err != nil {
		return nil, err
	}
	switch {
	case em.Only > 0:
		return o.edges[em.Only-1 : em.Only], nil
	case em.to != "":
		i := slices.IndexFunc(o.edges, func(ed *edge) bool { return ed.spec.To == em.to })
		if i < 0 {
			return nil, fmt.Errorf("%w: stage %q has no edge to %q", ErrNoEdge, o.name(), em.to)
		}
		return o.edges[i : i+1], nil
	}
	return o.edges, nil
}

// indexOf is the index of an edge among the outputs' edges.
func (o *outputs) indexOf(ed *edge) int { return slices.Index(o.edges, ed) }

func (b *Buffer) admitTo(f *flow) error {
	if largest := b.e.out.req.bus.store.MaxObjectBytes(); int64(b.size) > largest {
		return fmt.Errorf("%w: %d bytes, and the largest payload is one of %d, by default what the machine or its control group has: raise Store.MaxLargeBytes (large_bytes in a file)", ErrTooLarge, b.size, largest)
	}
	cost := f.edge.charge(b.price)
	if b.e.out.req.over() {
		return b.e.out.req.cause()
	}
	if f.edge.queues() {
		return f.makeQueueSpace(cost)
	}
	if f.tryTakeWithSlot(cost) {
		return nil
	}
	ran := b.e.handlerLock.pause()
	defer b.e.handlerLock.lock(b.e.out.req.id, ran)
	return f.waitForCredit(cost, b.e.cancel)
}

func (b *Buffer) giveCredit() {
	for _, ed := range b.edges {
		b.giveCreditOf(ed)
	}
	b.edges = nil
}

func (b *Buffer) giveCreditOf(ed *edge) {
	if !ed.queues() {
		b.e.out.req.flow(ed).giveCredit(oneDelivery | uint64(ed.charge(b.price)))
	}
}

// send makes a delivery for each edge and sends all of them or none.
func (b *Buffer) send(h messages.Handle, inline []byte) error {
	b.done = true
	o := b.e.out
	defer b.unholdRequest()
	var few [2]*Delivery
	made := few[:0]
	for _, ed := range b.edges {
		made = append(made, b.delivery(o.req.flow(ed), h, inline))
	}
	for _, d := range made {
		if err := d.prepare(); err != nil {
			ed := d.flow.edge
			b.refuse(made)
			return o.emissionError(ed, o.nextSeq(ed), b.em.Key, err)
		}
	}
	var after AfterUnlock
	err := b.launch(made, &after)
	if err == nil {
		after.Run()
		return nil
	}
	b.refuse(made)
	switch {
	case !errors.Is(err, ErrEnded):
		return err
	case o.discardsWhenOver():
		return nil
	}
	return o.req.cause()
}

// delivery makes the delivery for a flow.
func (b *Buffer) delivery(f *flow, h messages.Handle, inline []byte) *Delivery {
	d := b.first
	if d == nil {
		d = newDelivery()
	}
	d.flow, d.Handle = f, h
	if inline != nil {
		d.Inline, d.Codec, d.foreign = inline, uint32(b.codec), b.lent
	}
	d.cost, d.cause, d.origin = f.edge.charge(b.price), b.e.cause, holdOrigin(b.em.Put)
	return d
}

// errMustCopy reports an edge to a process that may not get the payload by reference.
var errMustCopy = errors.New("the payload has to be copied")

// launch sends prepared deliveries, unless the request is over, or one of the streams has ended or
// takes no payload by reference.
func (b *Buffer) launch(made []*Delivery, after *AfterUnlock) error {
	o := b.e.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.req.over() {
		return ErrEnded
	}
	for _, d := range made {
		switch f := d.flow; {
		case f.ended:
			return &StageError{Stage: o.name(), Edge: f.edge.name, Key: b.em.Key, Seq: f.seq, Err: ErrAfterEnd}
		case b.lent != nil && !f.mayRefer():
			return errMustCopy
		}
	}
	if b.e.kept {
		o.byKept++
	}
	for _, d := range made {
		f := d.flow
		if b.em.copies {
			f.sent.copies++
		}
		if b.spilled {
			f.sent.spilled++
		}
		f.send(d, b.em, after)
	}
	return nil
}

// ErrAfterEnd reports an emission on an edge whose stream has ended.
var ErrAfterEnd = errors.New("the stream has ended: nothing can be sent behind its last payload")

// refuse discards deliveries that are not sent, and returns the credit of their flows.
func (b *Buffer) refuse(made []*Delivery) {
	for _, d := range made {
		d.discard()
	}
	b.giveCredit()
}
