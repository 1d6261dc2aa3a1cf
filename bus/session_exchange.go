package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// What a client may have of the exchange.
const (
	maxPlaced        = 1 << 16 // payloads that it placed
	maxPlacedOwn     = 64      // of those, in segments of their own, which take a descriptor each
	maxExchangeWaits = 4096    // questions that wait
	maxOwners        = 4096    // owners that have placed something, and not cleaned up everything
	maxLasting       = 4096    // payloads that outlive their processes, of all clients together
)

// exchanging is what a client has of the exchange, but for the values, which are in its
// account.
type exchanging struct {
	mu     sync.Mutex               // guards what follows
	waits  map[uint32]*exchangeWait // by the token of the question
	placed int                      // payloads in the table, or with who fetched them
	own    int                      // of those, in segments of their own
}

// everyWait is a snapshot of the questions that wait.
func (x *exchanging) everyWait() []*exchangeWait {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Values(x.waits))
}

// place answers place: it puts a payload into the exchange.
func (s *session) place(m *wire.Place) error {
	p, err := s.placedPayload(m)
	switch {
	case errors.Is(err, connector.ErrFull):
		s.queue(failedMessage(m.Token, err))
		return nil
	case err != nil:
		return err
	}
	faultpoint.Hit("host-place")
	entry, err := s.placePayload(m, p)
	if err != nil {
		s.queue(failedMessage(m.Token, err))
		return nil
	}
	s.queue(&wire.Placed{Token: m.Token, Entry: entry})
	return nil
}

// placePayload takes the payload over, also if it fails.
func (s *session) placePayload(m *wire.Place, p *placed) (entry uint64, err error) {
	edge := connector.Edge{From: m.From, To: m.To}
	err = errors.Join(edge.Check(), connector.CheckKey(m.Key))
	var o *ring.Owner
	if err == nil {
		o, err = s.owner(m.Owner)
	}
	if err == nil {
		err = s.ex.charge(p.own)
		p.charged = err == nil
	}
	if err != nil {
		p.void = true
		p.Release()
		return 0, err
	}
	return o.Put(edge, m.Key, p.Payload)
}

// placed is a payload that a client is about to place.
type placed struct {
	*ledger.Payload
	own     bool // it has a segment of its own
	charged bool // it counts among the client's
	void    bool // it was not placed: nothing is said of it
}

// placedPayload finds the payload of a place.
func (s *session) placedPayload(m *wire.Place) (*placed, error) {
	p := &placed{own: m.Flags&wire.FlagOwn != 0}
	number := m.Put
	var err error
	if m.Flags&wire.FlagInline != 0 {
		p.Payload, err = s.srv.on.exchange.copied(m.Payload, func() { p.gone(s) })
		return p, err
	}
	put := &wire.Put{Put: number, Flags: m.Flags &^ wire.FlagForward, Segment: m.Segment, Offset: m.Offset, Size: m.Size}
	p.Payload, err = s.putPayload(put, func() {
		p.gone(s)
		if !p.void {
			s.returnPut(number)
		}
	})
	return p, err
}

// gone says that the last reference to the payload is gone.
func (p *placed) gone(s *session) {
	if p.charged {
		s.ex.discharge(p.own)
	}
}

// owner finds an owner of the client's, or makes it.
func (s *session) owner(number uint32) (*ring.Owner, error) {
	if number == wire.LastingOwner {
		return s.srv.on.exchange.lastingOwner()
	}
	return owner(&s.account, number, maxOwners, func() *ring.Owner {
		return s.srv.on.exchange.table.Owner(fmt.Sprintf("process %d (%s)", s.proc.PID(), s.name))
	})
}

// charge counts a payload of the client's.
func (x *exchanging) charge(own bool) error {
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

// discharge counts one less.
func (x *exchanging) discharge(own bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.placed--
	if own {
		x.own--
	}
}

// placedNow counts the payloads of the client's that lie in the exchange.
func (x *exchanging) placedNow() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.placed
}

// fetch answers fetch.
func (s *session) fetch(m *wire.Fetch) error {
	edge := connector.Edge{From: m.From, To: m.To}
	if err := errors.Join(edge.Check(), connector.CheckKey(m.Key)); err != nil {
		s.queue(failedMessage(m.Token, err))
		return nil
	}
	token, key, number, table := m.Token, m.Key, m.Entry, s.srv.on.exchange.table
	got, err := table.Get(edge, key, number)
	if err == nil {
		s.hand(token, got)
		return nil
	}
	if m.Flags&wire.FetchWait == 0 || number != 0 {
		s.queue(failedMessage(token, err))
		return nil
	}
	return s.askExchange(token, fmt.Sprintf("%q on %v, which nobody has placed", key, edge), func(ctx context.Context) (func(), error) {
		got, err := table.Await(ctx, nil, edge, key, number)
		return func() { s.hand(token, got) }, err
	})
}

// hand gives the client a payload.
func (s *session) hand(token uint32, got ring.Taken) {
	p := got.Payload.(*ledger.Payload) //nolint:forcetypeassert // the table has no others
	f := newFetched(got)
	m := &wire.Fetched{Token: token, Size: uint64(len(p.Bytes()))}
	switch {
	case len(p.Bytes()) <= wire.MaxInline:
		m.Flags, m.Payload = wire.FlagInline, p.Bytes()
	case p.Segment() == nil:
		var err error
		if f.copy, err = ledger.Copied(p.Bytes()); err != nil {
			got.PutBack()
			s.queue(failedMessage(token, err))
			return
		}
		p = f.copy
	}
	var at ledger.Location
	if m.Flags&wire.FlagInline == 0 {
		at.Seg, m.Offset = p.Segment(), p.Offset()
	}
	err := s.account.Hold(&f.hold, at, func(number, segment uint32) error {
		if s.ctx.Err() != nil {
			return ledger.ErrOver
		}
		m.Delivery, m.Segment = number, segment
		s.queue(m)
		faultpoint.Hit("host-fetched")
		return nil
	})
	if err != nil {
		f.settle(got.PutBack) // the client has not seen it
	}
}

// finish ends it when the client says so.
func (f *fetched) finish(m *wire.Finish) error {
	if m.Flags&wire.FinishUnread != 0 && m.Flags&wire.FinishKeep == 0 {
		f.settle(f.got.PutBack)
		return nil
	}
	f.settle(f.got.Release)
	if m.Flags&wire.FinishKeep != 0 {
		return fmt.Errorf("%w: delivery %d is of the exchange, whose payloads are not kept", wire.ErrProtocol, m.Delivery)
	}
	return nil
}

// cleanup answers cleanup.
func (s *session) cleanup(m *wire.Cleanup) {
	o := cleans(&s.account, m.Owner, m.Key == "")
	if m.Key != "" && m.Owner == wire.LastingOwner { // never everything: others have put that
		o = s.srv.on.exchange.lasting
	}
	n := 0
	switch {
	case o == nil:
	case m.Key == "":
		n = o.Close()
	default:
		n = o.Cleanup(m.Key)
	}
	s.queue(&wire.Cleaned{Token: m.Token, Count: uint32(n)})
}
