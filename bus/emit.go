package bus

import (
	"errors"
	"fmt"
	"sync"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Emitter sends payloads along the out-edges of a stage. Each payload is
// stored once, however many edges it takes.
//
// An emission waits while the window of an edge is full or the store has no
// room, unless the edge's policy says otherwise or the stage is one actor for
// many requests (Batch, Props): there, what does not fit the window is queued,
// and the stage gets no more input of this request until the queue is empty.
// There, too, an emission for a request that is over succeeds and goes nowhere,
// so that one request's end need not concern the others.
//
// The errors are those of the edges' policies, ErrTooLarge, ErrNoEdge, and how
// the request ended when it is over. A key and attributes that no message between
// processes takes are refused with a [*messages.MalformedError], whoever they are for.
type Emitter struct {
	out         *outputs
	handlerLock handlerLock     // given up while waiting; nil: none
	cancel      <-chan struct{} // of the caller's context
	kept        bool            // a kept delivery's, beside the handler
	cause       uint32          // the fed delivery that was kept
}

// EmitOption adjusts one emission.
type EmitOption func(Emission) Emission

// To sends the payload along the edge to that stage only.
func To(stage string) EmitOption {
	return func(e Emission) Emission { e.to = stage; return e }
}

// Key names the payload in errors and for the consumer.
func Key(key string) EmitOption {
	return func(e Emission) Emission { e.Key = key; return e }
}

// Attr adds a small attribute that travels with the delivery.
func Attr(name, value string) EmitOption {
	return func(e Emission) Emission {
		if e.Attrs == nil {
			e.Attrs = make(map[string]string)
		}
		e.Attrs[name] = value
		return e
	}
}

// Last marks the payload as the last of its streams: no end-of-stream message
// follows, and further emissions on these edges fail.
func Last() EmitOption { return last }

func last(e Emission) Emission { e.Last = true; return e }

// with applies options. They pass emissions by value, so that none escapes to
// the heap.
func (e Emission) with(opts []EmitOption) Emission {
	for _, o := range opts {
		e = o(e)
	}
	return e
}

// check refuses a key and attributes that no message between processes takes.
func (e *Emission) check() error {
	if e.Key == "" && len(e.Attrs) == 0 {
		return nil
	}
	if err := messages.ValidateLabels(e.Key, e.Attrs); err != nil {
		return fmt.Errorf("bus: emit: %w", err)
	}
	return nil
}

// Emit encodes v with the bus's serializer and sends it. Serializers that know
// the size up front encode straight into the store.
func (e Emitter) Emit(v any, opts ...EmitOption) error {
	s := e.out.req.bus.opts.Serializer
	if t, ok := v.(codec.Tensor); ok {
		return e.encode(codec.TensorSerializer{}, t, Emission{}.with(opts))
	}
	return e.encode(s, v, Emission{}.with(opts))
}

func (e Emitter) encode(s codec.Serializer, v any, em Emission) error {
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
	return e.emitCopy(enc, s.ID(), em)
}

var scratchPool = sync.Pool{New: func() any { return new([]byte) }}

// EmitBytes sends a copy of p. To fill the payload in place instead, use
// Reserve.
func (e Emitter) EmitBytes(p []byte, opts ...EmitOption) error {
	return e.emitCopy(p, codec.IDRaw, Emission{}.with(opts))
}

func (e Emitter) emitCopy(p []byte, c codec.ID, em Emission) error {
	if !e.kept && e.out.sendSmall(p, c, em) {
		return nil
	}
	em.copies = true
	return e.fill(len(p), c, em, func(dst []byte) error {
		codec.Copy(dst, p)
		return nil
	})
}

// EmitTensor sends a tensor that fill writes in place: data is the tensor's
// memory, row-major, in the store.
func (e Emitter) EmitTensor(dtype codec.DType, shape []int, fill func(data []byte) error, opts ...EmitOption) error {
	n, err := codec.TensorSize(dtype, shape...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPayload, err)
	}
	return e.fill(n, codec.IDTensor, Emission{}.with(opts), func(dst []byte) error {
		t, err := codec.NewTensorIn(dst, dtype, shape...)
		if err != nil {
			return err
		}
		return fill(t.Data)
	})
}

func (e Emitter) fill(n int, c codec.ID, em Emission, fill func([]byte) error) error {
	b, err := e.reserve(n, c, em)
	if err != nil {
		return err
	}
	if err := b.fill(fill); err != nil {
		return err
	}
	return b.Send(n)
}

// Forward sends the payload of d on by reference. It is copied if it is so small that it travels
// inside the delivery, if d is another bus's, or if it comes from one node or goes to another
// past the host, in whose memory no third process reads.
func (e Emitter) Forward(d *Delivery, opts ...EmitOption) error {
	return e.forward(d, Emission{}.with(opts))
}

func (e Emitter) forward(d *Delivery, em Emission) error {
	switch {
	case d.flow.req.bus != e.out.req.bus:
		return e.forwardCopy(d, em, "to another bus")
	case d.Handle.IsZero() && len(d.Inline) <= smallBytes:
		return e.emitCopy(d.Bytes(), d.PayloadCodec(), em)
	case d.foreign != nil && d.fed != nil && !d.fed.from.Relays():
		return e.forwardCopy(d, em, "what came past the host")
	case d.foreign != nil:
		d.foreign.Retain(1)
		err := e.emitLent(d.foreign, d.PayloadCodec(), em)
		if errors.Is(err, errMustCopy) {
			return e.forwardCopy(d, em, "past the host")
		}
		return err
	case !d.Handle.IsZero():
		return e.emitLease(&d.lease, d.PayloadCodec(), em)
	}
	return e.emitHeap(d.Inline, d.PayloadCodec(), em)
}

// forwardCopy sends a copy of the payload of d, unless that belongs to the object that it lies in.
func (e Emitter) forwardCopy(d *Delivery, em Emission, how string) error {
	if err := checkMovable(d.PayloadCodec(), d.Bytes()); err != nil {
		return fmt.Errorf("forward %s: %w", how, err)
	}
	return e.emitCopy(d.Bytes(), d.PayloadCodec(), em)
}

// emitHeap sends a payload that is on the heap, where the collector counts.
func (e Emitter) emitHeap(p []byte, c codec.ID, em Emission) error {
	b := Buffer{e: e, em: em, size: len(p), price: e.out.req.bus.price(len(p)), codec: c}
	if err := b.admit(); err != nil || b.void {
		return err
	}
	return b.send(messages.Handle{}, p)
}

// emitLease sends the payload under a lease on by reference.
func (e Emitter) emitLease(lease *shmstore.Lease, c codec.ID, em Emission) error {
	size := len(lease.Bytes())
	b := Buffer{e: e, em: em, size: size, price: e.out.req.bus.price(size), codec: c}
	if err := b.admit(); err != nil || b.void {
		return err
	}
	err := b.holdRequest()
	if err == nil {
		err = lease.Share(len(b.edges))
	}
	if err != nil {
		b.unholdRequest()
		b.giveCredit()
		return fmt.Errorf("forward: %w", err)
	}
	return b.send(lease.Handle(), nil)
}
