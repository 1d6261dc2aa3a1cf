package bus

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// errCanceled reports a wait that the caller's context ended.
var errCanceled = errors.New("bus: wait canceled")

// outlet is where the payloads of one request leave one stage, or enter the
// graph. Its lock makes the emissions of one request one stream.
type outlet struct {
	req   *Request
	task  *Task // nil: the caller
	edges []*edge

	mu       sync.Mutex // guards the producer's side of the flows
	producer *actors.Producer
}

// Emitter sends payloads along the out-edges of a stage. Each payload is
// stored once, however many edges it takes.
//
// An emission waits while the window of an edge is full or the store has no
// room, unless the edge's policy says otherwise or the stage is one actor for
// many requests (Batch, Props): there, what does not fit the window is queued,
// and the stage gets no more input of this request until the queue is empty.
//
// The errors are those of the edges' policies, ErrTooLarge, ErrNoEdge, and how
// the request ended when it is over.
type Emitter struct {
	out    *outlet
	turn   turn            // given up while waiting; nil: none
	cancel <-chan struct{} // of the caller's context
}

// EmitOption adjusts one emission.
type EmitOption func(emission) emission

type emission struct {
	to    string
	key   string
	attrs map[string]string
	last  bool

	copies bool // the bus copies the payload, where a stage could have filled it in place
}

// To sends the payload along the edge to that stage only.
func To(stage string) EmitOption {
	return func(e emission) emission { e.to = stage; return e }
}

// Key names the payload in errors and for the consumer.
func Key(key string) EmitOption {
	return func(e emission) emission { e.key = key; return e }
}

// Attr adds a small attribute that travels with the delivery.
func Attr(name, value string) EmitOption {
	return func(e emission) emission {
		if e.attrs == nil {
			e.attrs = make(map[string]string)
		}
		e.attrs[name] = value
		return e
	}
}

// Last marks the payload as the last of its streams: no end-of-stream message
// follows, and further emissions on these edges fail.
func Last() EmitOption { return last }

func last(e emission) emission { e.last = true; return e }

// with applies options. They pass emissions by value, so that none escapes to
// the heap.
func (e emission) with(opts []EmitOption) emission {
	for _, o := range opts {
		e = o(e)
	}
	return e
}

// Emit encodes v with the bus's serializer and sends it. Serializers that know
// the size up front encode straight into the store.
func (e Emitter) Emit(v any, opts ...EmitOption) error {
	s := e.out.req.bus.opts.Serializer
	if t, ok := v.(codec.Tensor); ok {
		return e.encode(codec.TensorSerializer{}, t, emission{}.with(opts))
	}
	return e.encode(s, v, emission{}.with(opts))
}

func (e Emitter) encode(s codec.Serializer, v any, em emission) error {
	if sizer, ok := s.(codec.Sizer); ok {
		if n, ok := sizer.Size(v); ok {
			return e.fill(n, s.ID(), em, func(dst []byte) error { return sizer.EncodeInto(dst, v) })
		}
	}
	scratch := scratchPool.Get().(*[]byte)
	defer scratchPool.Put(scratch)
	enc, err := s.Append((*scratch)[:0], v)
	*scratch = enc
	if err != nil {
		return fmt.Errorf("%w: encode %T with %s: %w", ErrPayload, v, s.Name(), err)
	}
	return e.copied(enc, s.ID(), em)
}

var scratchPool = sync.Pool{New: func() any { return new([]byte) }}

// EmitBytes sends a copy of p. To fill the payload in place instead, use
// Reserve.
func (e Emitter) EmitBytes(p []byte, opts ...EmitOption) error {
	return e.copied(p, codec.IDRaw, emission{}.with(opts))
}

func (e Emitter) copied(p []byte, c codec.ID, em emission) error {
	if e.out.sendSmall(p, c, em) {
		return nil
	}
	em.copies = true
	return e.fill(len(p), c, em, func(dst []byte) error {
		copy(dst, p)
		return nil
	})
}

// sendSmall is the short way for what most small payloads are: inline, along
// a single edge that has credit. It reports false, with nothing done, for
// those that are not.
func (o *outlet) sendSmall(p []byte, c codec.ID, em emission) bool {
	if len(p) > smallBytes || len(p) > o.req.bus.opts.InlineBytes || len(o.edges) != 1 || em.to != "" {
		return false
	}
	ed := o.edges[0]
	f := o.req.flow(ed)
	price := cost(len(p))
	if ed.queues() || o.req.over() || !f.tryTake(price) {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if f.ended {
		f.give(oneDelivery | uint64(price))
		return false
	}
	d := newDelivery()
	d.Inline = d.small[:copy(d.small[:], p):len(p)]
	d.Codec = uint32(c)
	d.cost = price
	f.sent.copies++
	f.send(d, em)
	return true
}

// EmitTensor sends a tensor that fill writes in place: data is the tensor's
// memory, row-major, in the store.
func (e Emitter) EmitTensor(dtype codec.DType, shape []int, fill func(data []byte) error, opts ...EmitOption) error {
	n, err := codec.TensorSize(dtype, shape...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPayload, err)
	}
	return e.fill(n, codec.IDTensor, emission{}.with(opts), func(dst []byte) error {
		t, err := codec.NewTensorIn(dst, dtype, shape...)
		if err != nil {
			return err
		}
		return fill(t.Data)
	})
}

func (e Emitter) fill(n int, c codec.ID, em emission, fill func([]byte) error) error {
	b, err := e.reserve(n, c, em)
	if err != nil {
		return err
	}
	if err := fill(b.Bytes()); err != nil {
		b.Abort()
		return err
	}
	return b.Send(n)
}

// Forward sends the payload of d on by reference: nothing is copied.
func (e Emitter) Forward(d *Delivery, opts ...EmitOption) error {
	em := emission{}.with(opts)
	if d.Handle.IsZero() {
		return e.copied(d.Inline, d.PayloadCodec(), em)
	}
	b := Buffer{e: e, em: em, size: int(d.Handle.Size), codec: d.PayloadCodec()}
	if err := b.admit(); err != nil {
		return err
	}
	if err := d.lease.Share(len(b.edges)); err != nil {
		b.giveCredit()
		return fmt.Errorf("forward: %w", err)
	}
	return b.send(d.Handle, nil)
}

// Buffer is room for one payload, to be filled in place and sent. It belongs
// to one goroutine. Send it or Abort it.
type Buffer struct {
	e     Emitter
	em    emission
	codec codec.ID
	size  int     // reserved
	edges []*edge // those the payload goes to, once credit is taken
	room  shmstore.Reservation
	small []byte    // the payload, when it travels inline
	first *Delivery // made early, when the payload travels inside it
	done  bool
}

// Reserve returns room for a payload of up to size bytes. It takes the edge's
// credit, and waits for it.
func (e Emitter) Reserve(size int, c codec.ID, opts ...EmitOption) (*Buffer, error) {
	b, err := e.reserve(size, c, emission{}.with(opts))
	if err != nil {
		return nil, err
	}
	return &b, nil
}

func (e Emitter) reserve(size int, c codec.ID, em emission) (Buffer, error) {
	b := Buffer{e: e, em: em, codec: c, size: size}
	if size < 0 {
		return b, fmt.Errorf("%w: size %d is negative", ErrPayload, size)
	}
	if err := b.admit(); err != nil {
		return b, err
	}
	if !b.inStore() {
		b.reserveInline()
		return b, nil
	}
	room, err := b.reserveRoom()
	if err != nil {
		b.giveCredit()
		return b, err
	}
	b.room = room
	return b, nil
}

func (b *Buffer) reserveInline() {
	if b.size > smallBytes || len(b.edges) != 1 {
		b.small = make([]byte, b.size)
		return
	}
	b.first = newDelivery()
	b.small = b.first.small[:b.size:b.size]
}

// reserveRoom asks the store for room. The byte windows fit the store, so it
// is there, or comes back when older payloads between are released.
func (b *Buffer) reserveRoom() (shmstore.Reservation, error) {
	o := b.e.out
	b.e.turn.leave()
	defer b.e.turn.enter()
	room, err := o.producer.Reserve(o.req.done, b.e.cancel, b.size, b.codec)
	switch {
	case errors.Is(err, actors.ErrCanceled) && o.req.over():
		return room, o.req.cause()
	case errors.Is(err, actors.ErrCanceled):
		return room, errCanceled
	case err != nil:
		return room, fmt.Errorf("reserve %d bytes: %w", b.size, err)
	}
	return room, nil
}

// Bytes is the memory to fill.
func (b *Buffer) Bytes() []byte {
	if b.small != nil || b.size == 0 {
		return b.small
	}
	return b.room.Bytes()[:b.size]
}

// Abort gives room and credit back. After Send it does nothing.
func (b *Buffer) Abort() {
	if b.done {
		return
	}
	b.done = true
	if b.inStore() {
		b.room.Abort()
	}
	if b.first != nil {
		b.first.recycle()
	}
	b.giveCredit()
}

// Send sends the first n bytes. Options given here add to those of Reserve;
// the edges were chosen there.
func (b *Buffer) Send(n int, opts ...EmitOption) error {
	if b.done || n < 0 || n > b.size {
		panic(fmt.Sprintf("bus: Send(%d) on a buffer of %d bytes (sent or aborted before: %v)", n, b.size, b.done))
	}
	b.em = b.em.with(opts)
	if !b.inStore() {
		return b.send(messages.Handle{}, b.small[:n:n])
	}
	h, err := b.room.Commit(n, len(b.edges))
	if err != nil {
		b.Abort()
		return fmt.Errorf("commit %d bytes: %w", n, err)
	}
	return b.send(h, nil)
}

func (b *Buffer) inStore() bool { return b.size > b.e.out.req.bus.opts.InlineBytes }

// admit takes credit on every edge that the payload goes to.
func (b *Buffer) admit() error {
	o := b.e.out
	edges := o.edges
	if b.em.to != "" {
		i := slices.IndexFunc(edges, func(ed *edge) bool { return ed.spec.To == b.em.to })
		if i < 0 {
			return fmt.Errorf("%w: stage %q has no edge to %q", ErrNoEdge, o.name(), b.em.to)
		}
		edges = edges[i : i+1]
	}
	for i, ed := range edges {
		if err := b.admitTo(o.req.flow(ed)); err != nil {
			b.edges = edges[:i]
			b.giveCredit()
			return o.emissionError(ed, o.req.flow(ed).seq, b.em.key, err)
		}
	}
	b.edges = edges
	return nil
}

func (b *Buffer) admitTo(f *flow) error {
	c := cost(b.size)
	if c > f.edge.windowBytes {
		return fmt.Errorf("%w: %d bytes take %d of the edge's byte window of %d: raise WindowBytes, or the store's bytes", ErrTooLarge, b.size, c, f.edge.windowBytes)
	}
	if b.e.out.req.over() {
		return b.e.out.req.cause()
	}
	if f.edge.queues() {
		return f.makeRoom(c)
	}
	if f.tryTake(c) {
		return nil
	}
	b.e.turn.leave()
	defer b.e.turn.enter()
	return f.take(c, b.e.cancel)
}

func (b *Buffer) giveCredit() {
	for _, ed := range b.edges {
		if !ed.queues() {
			b.e.out.req.flow(ed).give(oneDelivery | uint64(cost(b.size)))
		}
	}
	b.edges = nil
}

// send makes a delivery for each edge and hands it on.
func (b *Buffer) send(h messages.Handle, inline []byte) error {
	b.done = true
	o := b.e.out
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, ed := range b.edges {
		f := o.req.flow(ed)
		if f.ended {
			return b.refuse(i, h, o.emissionError(ed, f.seq, b.em.key, errAfterEnd))
		}
		d := b.first
		if d == nil {
			d = newDelivery()
		}
		d.Handle = h
		if inline != nil {
			d.Inline, d.Codec = inline, uint32(b.codec)
		}
		d.cost = cost(b.size)
		if b.em.copies {
			f.sent.copies++
		}
		f.send(d, b.em)
	}
	return nil
}

var errAfterEnd = errors.New("the stream has ended: nothing can be sent behind its last payload")

// refuse gives back what the flows from index i on were charged.
func (b *Buffer) refuse(i int, h messages.Handle, err error) error {
	b.edges = b.edges[i:]
	for range b.edges {
		if !h.IsZero() {
			b.e.out.req.bus.store.Local().Drop(h)
		}
	}
	b.giveCredit()
	return err
}

// number makes d the next delivery of the flow.
func (f *flow) number(d *Delivery) {
	d.flow = f
	d.Request, d.Deadline = f.req.id, f.req.deadline
	if f.req.traced {
		d.Trace = f.req.trace
	}
	d.Edge, d.Seq, d.Attempt = f.edge.name, f.seq, f.attempt
	f.seq++
	if d.Seq < latencySampleFirst || d.Seq%latencySampleEvery == 0 {
		d.sentAt = max(int64(f.req.bus.now()), 1)
	}
}

// send numbers, counts and launches a delivery that has its payload.
func (f *flow) send(d *Delivery, em emission) {
	f.number(d)
	d.Key, d.Attrs, d.EOS = em.key, em.attrs, em.last
	f.ended = em.last
	f.sent.deliveries++
	f.sent.bytes += int64(len(d.Inline)) + int64(d.Handle.Size)
	if d.Handle.IsZero() {
		f.sent.inline++
	}
	f.launch(d)
}

// launch sends a numbered delivery.
func (f *flow) launch(d *Delivery) {
	if f.edge.spec.Fault != nil && f.tamper(d) {
		return
	}
	d.credit = oneDelivery | uint64(d.cost)
	if d.cost == 0 {
		d.credit = 0
	}
	if f.edge.queues() {
		f.push(d)
		return
	}
	f.deliver(d)
}

// close sends the end of the stream on every edge that has not ended.
func (e Emitter) close() error {
	for _, ed := range e.out.edges {
		f := e.out.req.flow(ed)
		if e.out.hasEnded(f) { // its consumer may be gone by now
			continue
		}
		if !ed.queues() && !f.open() {
			if err := e.awaitSlot(f); err != nil {
				return err
			}
		}
		e.out.endStream(f)
	}
	return nil
}

func (o *outlet) hasEnded(f *flow) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return f.ended
}

func (o *outlet) endStream(f *flow) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if f.ended {
		return
	}
	f.ended = true
	d := newDelivery()
	f.number(d)
	d.EOS = true
	f.launch(d)
}

func (e Emitter) awaitSlot(f *flow) error {
	e.turn.leave()
	defer e.turn.enter()
	return f.take(0, e.cancel)
}

func (o *outlet) name() string {
	if o.task == nil {
		return ""
	}
	return o.task.stage.spec.Name
}

// emissionError names the place of an emission that failed. How the request
// ended is passed on as it is.
func (o *outlet) emissionError(ed *edge, seq uint64, key string, err error) error {
	if o.req.over() || errors.Is(err, errCanceled) {
		return err
	}
	return &StageError{Stage: o.name(), Edge: ed.name, Key: key, Seq: seq, Err: err}
}
