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
// space, unless the edge's policy says otherwise or the stage is one actor for
// many requests (Batch, Props). For such a stage, deliveries that do not fit the
// window are queued, and the stage gets no more input of this request until the
// queue is empty; an emission for a request that is over succeeds without effect,
// so that the end of one request does not disturb the others.
//
// The errors are those of the edges' policies, ErrTooLarge, ErrNoEdge, and the
// request's error when it is over. A key or attributes that do not fit a message between
// processes are refused with a [*messages.MalformedError], on every edge.
type Emitter struct {
	out         *outputs
	handlerLock handlerLock     // released during a wait; the zero value: no handler emits
	cancel      <-chan struct{} // ends waits; of the caller's context
	kept        bool            // it is a kept delivery's, and may run beside the handler
	cause       uint32          // the host's number of the kept delivery
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

// check refuses a key and attributes that do not fit a message between processes.
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

// EmitBytes sends a copy of p. Reserve avoids the copy: the payload is filled in place.
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

// Forward sends the payload of d by reference. It is copied if it is small enough to travel inside
// the delivery, if d belongs to another bus, or if it comes or goes by a direct path between nodes:
// no third process reads their memory.
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
		return e.forwardCopy(d, em, "from a direct path")
	case d.foreign != nil:
		d.foreign.Retain(1)
		err := e.emitLent(d.foreign, d.PayloadCodec(), em)
		if errors.Is(err, errMustCopy) {
			return e.forwardCopy(d, em, "by a direct path")
		}
		return err
	case !d.Handle.IsZero():
		return e.emitLease(&d.lease, d.PayloadCodec(), em)
	}
	return e.emitHeap(d.Inline, d.PayloadCodec(), em)
}

// forwardCopy sends a copy of the payload of d, unless its tensors belong to the object in which the
// payload lies.
func (e Emitter) forwardCopy(d *Delivery, em Emission, how string) error {
	if err := checkMovable(d.PayloadCodec(), d.Bytes()); err != nil {
		return fmt.Errorf("forward %s: %w", how, err)
	}
	return e.emitCopy(d.Bytes(), d.PayloadCodec(), em)
}

// emitHeap sends a payload on the heap by reference: the garbage collector counts the references.
func (e Emitter) emitHeap(p []byte, c codec.ID, em Emission) error {
	b := Buffer{e: e, em: em, size: len(p), price: e.out.req.bus.price(len(p)), codec: c}
	if err := b.admit(); err != nil || b.void {
		return err
	}
	return b.send(messages.Handle{}, p)
}

// emitLease sends the payload of a lease by reference.
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
