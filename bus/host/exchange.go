package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/exchange"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// Bounds of one client in the exchange.
const (
	maxPlaced        = 1 << 16 // payloads that it placed
	maxPlacedOwn     = 64      // of those, in segments of their own, each with a descriptor
	maxExchangeWaits = 4096    // questions that wait
	maxOwners        = 4096    // owners that have placed payloads and not removed them all
)

// exchangeState is a client's state in the exchange. Its values are in its account.
type exchangeState struct {
	mu     lockorder.Mutex[lockorder.ExchangeState] // guards what follows
	waits  map[uint32]*exchangeWait                 // by the token of the question
	placed int                                      // payloads in the table, or fetched and not finished
	own    int                                      // of those, in segments of their own
}

// allWaits returns a snapshot of the questions that wait.
func (x *exchangeState) allWaits() []*exchangeWait {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Values(x.waits))
}

// place puts a payload into the exchange, and answers.
func (s *session) place(m *wire.Place) error {
	p, err := s.placedPayload(m)
	switch {
	case errors.Is(err, connector.ErrFull):
		s.queue(hostnode.Failed(m.Token, err))
		return nil
	case err != nil:
		return err
	}
	faultpoint.Hit("host-place")
	entry, err := s.placePayload(m, p)
	if err != nil {
		s.queue(hostnode.Failed(m.Token, err))
		return nil
	}
	s.queue(&wire.Placed{Token: m.Token, Entry: entry})
	return nil
}

// placePayload takes over the payload, even on failure.
func (s *session) placePayload(m *wire.Place, p *placed) (entry uint64, err error) {
	edge := connector.Edge{From: m.From, To: m.To}
	err = errors.Join(edge.Check(), connector.CheckKey(m.Key))
	var o *ring.Owner
	if err == nil {
		o, err = s.srv.services.Exchange.Owner(&s.account, m.Owner, maxOwners, fmt.Sprintf("process %d (%s)", s.proc.PID(), s.name))
	}
	if err == nil {
		err = s.exchange.charge(p.own)
		p.charged = err == nil
	}
	if err != nil {
		p.failed = true
		p.Release()
		return 0, err
	}
	return o.Put(edge, m.Key, p.Payload)
}

// placed is a payload that a client is about to place.
type placed struct {
	*accounts.Payload
	own     bool // it has a segment of its own
	charged bool // it counts against the client's bound
	failed  bool // it was not placed: the client gets no return
}

// placedPayload returns the payload of a place.
func (s *session) placedPayload(m *wire.Place) (*placed, error) {
	p := &placed{own: m.Flags&wire.FlagOwn != 0}
	number := m.Put
	var err error
	if m.Flags&wire.FlagInline != 0 {
		p.Payload, err = s.srv.services.Exchange.Copied(m.Payload, func() { p.released(s) })
		return p, err
	}
	put := &wire.Put{Put: number, Flags: m.Flags &^ wire.FlagForward, Segment: m.Segment, Offset: m.Offset, Size: m.Size}
	p.Payload, err = s.putPayload(put, func() {
		p.released(s)
		if !p.failed {
			s.returnPut(number)
		}
	})
	return p, err
}

// released is called when the last reference to the payload is dropped.
func (p *placed) released(s *session) {
	if p.charged {
		s.exchange.discharge(p.own)
	}
}

// charge counts a payload against the client's bounds.
func (x *exchangeState) charge(own bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.placed >= maxPlaced || (own && x.own >= maxPlacedOwn) {
		return fmt.Errorf("%w: %d payloads of this client lie in the exchange, %d may, and %d in segments of their own, %d may",
			connector.ErrFull, x.placed, maxPlaced, x.own, maxPlacedOwn)
	}
	x.placed++
	if own {
		x.own++
	}
	return nil
}

// discharge undoes charge.
func (x *exchangeState) discharge(own bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.placed--
	if own {
		x.own--
	}
}

// placedCount returns how many payloads of the client lie in the exchange, or are fetched and not
// finished.
func (x *exchangeState) placedCount() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.placed
}

// fetch answers with a value, at once or when it is placed.
func (s *session) fetch(m *wire.Fetch) error {
	edge := connector.Edge{From: m.From, To: m.To}
	if err := errors.Join(edge.Check(), connector.CheckKey(m.Key)); err != nil {
		s.queue(hostnode.Failed(m.Token, err))
		return nil
	}
	token, key, entry, x := m.Token, m.Key, m.Entry, s.srv.services.Exchange
	got, err := x.Get(edge, key, entry)
	if err == nil {
		s.sendFetched(token, got)
		return nil
	}
	if m.Flags&wire.FetchWait == 0 || entry != 0 {
		s.queue(hostnode.Failed(token, err))
		return nil
	}
	return s.askExchange(token, fmt.Sprintf("%q on %v, which no process has placed", key, edge), func(ctx context.Context) (func(), error) {
		got, err := x.Await(ctx, edge, key, entry)
		return func() { s.sendFetched(token, got) }, err
	})
}

// sendFetched sends the client a value.
func (s *session) sendFetched(token uint32, f *exchange.Fetched) {
	m := &wire.Fetched{Token: token, Size: uint64(len(f.Bytes()))}
	var at accounts.Location
	if len(f.Bytes()) <= wire.MaxInline {
		m.Flags, m.Payload = wire.FlagInline, f.Bytes()
	} else {
		p, err := f.InMemory()
		if err != nil {
			f.PutBack()
			s.queue(hostnode.Failed(token, err))
			return
		}
		at.Seg, m.Offset = p.Segment(), p.Offset()
	}
	err := s.account.AddAndSend(&f.Hold, at, func(number, segment uint32) error {
		if s.ctx.Err() != nil {
			return accounts.ErrClosed
		}
		m.Delivery, m.Segment = number, segment
		s.queue(m)
		faultpoint.Hit("host-fetched")
		return nil
	})
	if err != nil {
		f.PutBack() // the client has not seen the value
	}
}

// finishFetched ends the client's use of a value.
func finishFetched(f *exchange.Fetched, m *wire.Finish) error {
	if m.Flags&wire.FinishUnread != 0 && m.Flags&wire.FinishKeep == 0 {
		f.PutBack()
		return nil
	}
	f.GiveBack()
	if m.Flags&wire.FinishKeep != 0 {
		return fmt.Errorf("%w: delivery %d is of the exchange, whose payloads are not kept", wire.ErrProtocol, m.Delivery)
	}
	return nil
}

// cleanup removes an owner's values, and answers.
func (s *session) cleanup(m *wire.Cleanup) {
	n := s.srv.services.Exchange.Cleanup(&s.account, m.Owner, m.Key)
	s.queue(&wire.Cleaned{Token: m.Token, Count: uint32(n)})
}
