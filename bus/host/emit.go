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

// forwarding returns the payload that a message forwards by reference; nil: the message has a payload
// of its own. The payload is held until it is released, since the client may return the delivery before
// the emission is made.
func (s *session) forwarding(flags uint8, delivery uint32) (accounts.Held, error) {
	if flags&wire.FlagForward == 0 {
		return nil, nil
	}
	if p := s.account.Share(delivery); p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%w: delivery %d is not the client's to forward", wire.ErrProtocol, delivery)
}

// offer maps memory that the client offers. The client fills it and keeps its accounts.
func (s *session) offer(m *wire.Offer, fds []int) error {
	err := s.mayOffer(m.Bytes)
	if s.account.PeerSegment(m.Segment) != nil {
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
	s.account.AddPeerSegment(m.Segment, s.memory.adopt(mem), maxOffered)
	return nil
}

// offerError makes the error that tells a client why its memory cannot be mapped.
func offerError(err error) error {
	switch {
	case errors.Is(err, shmstore.ErrSize):
		return fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	case errors.Is(err, syscall.ENOMEM):
		return &wire.Error{Code: wire.CodeMemory, Text: fmt.Sprintf(
			"%v: the host, process %d, cannot map more memory: raise its limit of address space (ulimit -v) or vm.max_map_count, or offer less", err, os.Getpid())}
	}
	return err
}

// forgetOffer retires memory in which the client puts no further payloads.
func (s *session) forgetOffer(number uint32) error {
	seg := s.account.RemovePeerSegment(number)
	if seg == nil {
		return fmt.Errorf("%w: segment %d was not offered", wire.ErrProtocol, number)
	}
	s.srv.retireSegment(seg)
	return nil
}

// put sends a payload that lies in the client's accounts until the host returns it.
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

// put is the host's record of a payload in a client's accounts.
type put struct {
	sess       *session
	id         uint32
	source     *source      // nil: the source had ended already
	refs       atomic.Int32 // of the emission, its deliveries, and the payload in the client's memory
	returned   atomic.Bool  // the client was told that the payload is returned
	windowFull atomic.Bool  // a window had no space for another such payload when a delivery ended
	forwarded  bool         // the payload is that of a delivery: the client keeps nothing for it

	// Until the emission is made:
	emission bus.Emission
	index    bus.EmissionIndex
	delivery uint32            // the input that the emission is made for
	codec    codec.ID          // of the payload, which is one of these:
	data     []byte            // a payload in the message
	lent     *accounts.Payload // a payload in the client's memory
	forward  accounts.Held     // the payload of a delivery
}

// run implements step. It makes the emission, unless an earlier handling of the same input has made it.
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
	case errors.Is(err, bus.ErrCanceled): // the session ended
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

// workOf returns the work that a delivery of the client is part of; nil: none, or it is finished.
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

// done releases what the emission needed.
func (p *put) done() {
	p.lent.Release()
	if p.forward != nil {
		p.forward.Release()
	}
	p.lent, p.forward, p.data = nil, nil, nil
	p.release()
}

// putInPlace returns the payload of a put that lies in the client's memory. The payload's last
// reference releases the put.
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

// Unhold implements bus.Origin. It is called before the delivery gives its credit back, since the
// client may be waiting for the credit, even while the emission is still being made.
func (p *put) Unhold() {
	if p.forwarded {
		return
	}
	if p.source.underPressure() {
		p.windowFull.Store(true)
	}
	p.release()
}

// release drops a reference. After the last one the client is told that the payload, and its space in
// the windows, is free.
func (p *put) release() {
	if p.refs.Add(-1) > 0 {
		return
	}
	p.returned.Store(true)
	p.sess.queueReturn(&wire.Returned{Puts: []uint32{p.id}}, p.windowFull.Load() || p.source.underPressure())
}

// returnPut tells the client that its payload has left the exchange.
func (s *session) returnPut(id uint32) { s.queueReturn(&wire.Returned{Puts: []uint32{id}}, true) }

// queueReturn sends a client a return: at once, or with the next packet and within a millisecond. A
// closing host sends none: it drops its references although other processes may still be reading the
// payloads.
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

// Spent implements bus.Origin. It tells the client that credit came back for a payload that is still in
// use.
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

// putPayload returns the payload of a put or a place that lies in the client's memory.
func (s *session) putPayload(m *wire.Put, returned func()) (*accounts.Payload, error) {
	seg := s.account.PeerSegment(m.Segment)
	if seg == nil {
		return nil, fmt.Errorf("%w: segment %d was not offered", wire.ErrProtocol, m.Segment)
	}
	if m.Flags&wire.FlagOwn != 0 {
		s.account.RemovePeerSegment(m.Segment)
		seg.Retire()
		defer seg.Release() // the payload holds a reference
	}
	p, err := seg.CheckedPayload(m.Offset, m.Size, s.copiesSmall(), returned) // a node may put the same payload several times
	if err != nil {
		return nil, fmt.Errorf("segment %d: %w", m.Segment, err)
	}
	s.memory.countPayload(p)
	return p, nil
}
