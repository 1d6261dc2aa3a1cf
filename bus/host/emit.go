package host

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// forwarding finds the payload that a message passes on by reference; nil: it
// has its own. It is held until it is released: the client may give the delivery back
// before the emission is made.
func (s *session) forwarding(flags uint8, delivery uint32) (accounts.Held, error) {
	if flags&wire.FlagForward == 0 {
		return nil, nil
	}
	if p := s.account.Share(delivery); p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%w: delivery %d is not the client's to forward", wire.ErrProtocol, delivery)
}

// offer takes in memory that the client fills and keeps the books of.
func (s *session) offer(m *wire.Offer, fds []int) error {
	err := s.mayOffer(m.Bytes)
	if s.account.Memory(m.Segment) != nil {
		err = fmt.Errorf("%w: segment %d was offered before", wire.ErrProtocol, m.Segment)
	}
	if err != nil {
		process.CloseAll(fds)
		return err
	}
	mem, err := shmstore.OpenFillingSegment("offer", fds[0], int64(m.Bytes))
	if err != nil {
		return offerError(err)
	}
	s.account.Show(m.Segment, s.memory.adopt(mem), maxOffered)
	return nil
}

// offerError says to a client why its memory could not be taken in.
func offerError(err error) error {
	switch {
	case errors.Is(err, shmstore.ErrSize):
		return fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	case errors.Is(err, syscall.ENOMEM):
		return &wire.Error{Code: wire.CodeMemory, Text: fmt.Sprintf(
			"%v: the host, process %d, has no room for one more mapping: raise its limit of address space (ulimit -v) or vm.max_map_count, or offer less", err, os.Getpid())}
	}
	return err
}

// forgetOffer lets go of memory that the client puts nothing more in.
func (s *session) forgetOffer(number uint32) error {
	seg := s.account.Hide(number)
	if seg == nil {
		return fmt.Errorf("%w: segment %d was not offered", wire.ErrProtocol, number)
	}
	s.srv.retireSegment(seg)
	return nil
}

// put sends a payload that the client keeps the books of, until it is returned.
func (s *session) put(m *wire.Put) error {
	src, err := s.source(m.Source)
	if err != nil {
		return err
	}
	forward, err := s.forwarding(m.Flags, m.Delivery)
	if err != nil {
		return err
	}
	p := &put{sess: s, id: m.Put, source: src, forwarded: forward != nil, forward: forward, delivery: m.Delivery, codec: codec.ID(m.Codec), data: m.Payload}
	p.refs.Store(1)
	if m.Flags&(wire.FlagInline|wire.FlagForward) == 0 {
		if p.lent, err = s.putInPlace(m, p); err != nil {
			return err
		}
	}
	if src == nil {
		p.done()
		return nil
	}
	if p.emission, err = src.emission(m.Edge, m.Flags, m.Key, m.Attrs); err != nil {
		p.done()
		return fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	}
	p.emission.Put = p
	return src.do(p)
}

// put is a payload that a client keeps the books of, as the host knows it.
type put struct {
	sess       *session
	id         uint32
	source     *source      // nil: it was over already
	refs       atomic.Int32 // the emission's, its deliveries', and that of memory of the client's
	returned   atomic.Bool  // returned
	windowFull atomic.Bool  // a window had no place for another payload when a delivery ended
	forwarded  bool         // the payload is a delivery's: the client has nothing to keep once it is on its way

	// Until the emission is made:
	emission bus.Emission
	index    bus.EmissionIndex
	delivery uint32            // that it is made for
	codec    codec.ID          // of the payload, which is one of these:
	data     []byte            // ... in the message
	lent     *accounts.Payload // ... in memory of the client's
	forward  accounts.Held     // ... that of a delivery
}

// run implements step: it makes the emission, unless an earlier handling of the same input has
// made it.
func (p *put) run(how waitMode) error {
	src := p.source
	e, req := src.emitterFor(how)
	if how == skip || req == nil {
		p.done()
		return nil
	}
	repeat := src.task != nil && p.index.Count(src.task, p.sess.workOf(p.delivery))
	var err error
	if !repeat {
		err = p.emit(e)
	}
	switch {
	case errors.Is(err, bus.ErrCanceled) && how == noWait:
		return err
	case errors.Is(err, bus.ErrCanceled): // the session has ended
		p.done()
		return err
	case err == nil && !repeat:
		p.index.MarkSent()
	case err != nil:
		req.Control().End(bus.Failed, err)
	}
	p.done()
	return nil
}

func (p *put) emit(e bus.Emitter) error {
	switch {
	case p.forward != nil:
		return e.Control().Pass(p.forward, p.emission)
	case p.lent == nil:
		return e.Control().Copy(p.data, p.codec, p.emission)
	}
	p.lent.Retain(1)
	return e.Control().Lend(p.lent, p.codec, p.emission)
}

// workOf is the work that a delivery of the client's is part of; nil: of none, or it is finished.
func (s *session) workOf(delivery uint32) (w *bus.Work) {
	s.account.Inspect(delivery, func(h *accounts.Hold) {
		if h != nil && h.Delivery != nil {
			w = h.Delivery.(*sentDelivery).work //nolint:forcetypeassert // an account has no others
		}
	})
	return w
}

// retain implements step.
func (p *put) retain() { p.data = append([]byte(nil), p.data...) }

// done ends what the emission needed.
func (p *put) done() {
	p.lent.Release()
	if p.forward != nil {
		p.forward.Release()
	}
	p.lent, p.forward, p.data = nil, nil, nil
	p.release()
}

// putInPlace finds the payload of a put that lies in the client's memory. It returns the
// put with the last reference to the payload.
func (s *session) putInPlace(m *wire.Put, origin *put) (*accounts.Payload, error) {
	p, err := s.putPayload(m, origin.release)
	if err != nil {
		return nil, err
	}
	origin.refs.Add(1)
	if m.Flags&wire.FlagOwn != 0 {
		s.alone.count(p)
	}
	return p, nil
}

// Hold implements bus.Origin, for holders of a reference.
func (p *put) Hold() {
	if !p.forwarded {
		p.refs.Add(1)
	}
}

// Unhold is called before the delivery gives its credit back: the client may be waiting for
// that, also where the emission has yet to end.
func (p *put) Unhold() {
	if p.forwarded {
		return
	}
	if p.source.underPressure() {
		p.windowFull.Store(true)
	}
	p.release()
}

// release ends a reference. The client is told when nobody needs the payload any more, nor
// its place in the windows.
func (p *put) release() {
	if p.refs.Add(-1) > 0 {
		return
	}
	p.returned.Store(true)
	p.sess.queueReturn(&wire.Returned{Puts: []uint32{p.id}}, p.windowFull.Load() || p.source.underPressure())
}

// returnPut tells the client that nobody needs what it put into the exchange any more.
func (s *session) returnPut(id uint32) { s.queueReturn(&wire.Returned{Puts: []uint32{id}}, true) }

// queueReturn tells the client what comes back to it: at once, or with the next packet, and
// within a millisecond. A host that closes does not know: it lets go of what others may
// go on reading.
func (s *session) queueReturn(m wire.Message, now bool) {
	select {
	case <-s.srv.closing.Done():
		return
	default:
	}
	if now {
		s.queue(m)
		return
	}
	s.queueLater(m)
}

// Spent tells the client that credit came back for a payload that is still
// needed.
func (p *put) Spent(bytesToo bool) {
	if p.returned.Load() {
		return
	}
	m := &wire.Spent{Put: p.id}
	if bytesToo {
		m.Flags = wire.SpentBytes
	}
	p.sess.queueReturn(m, p.source.underPressure())
}

// putPayload finds the payload of a put or a place that lies in memory of the client's.
func (s *session) putPayload(m *wire.Put, returned func()) (*accounts.Payload, error) {
	seg := s.account.Memory(m.Segment)
	if seg == nil {
		return nil, fmt.Errorf("%w: segment %d was not offered", wire.ErrProtocol, m.Segment)
	}
	if m.Flags&wire.FlagOwn != 0 {
		s.account.Hide(m.Segment)
		seg.Retire()
		defer seg.Release() // the payload keeps it
	}
	p, err := seg.Claimed(m.Offset, m.Size, s.copiesSmall(), returned) // a node may put one payload several times
	if err != nil {
		return nil, fmt.Errorf("segment %d: %w", m.Segment, err)
	}
	s.memory.countPayload(p)
	return p, nil
}
