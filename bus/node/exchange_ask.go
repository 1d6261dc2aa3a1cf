package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/waiting"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// lateAnswer is how long the host may take to answer a question whose context has
// ended. It answers at once, unless it is stopped; and its answer says whether
// something was put, or got.
const lateAnswer = time.Second

// awaitLate is await, but gives the host a moment when the context has ended.
func (l *link) awaitLate(ctx context.Context, q *question, ended func()) (wire.Message, error) {
	select {
	case m, ok := <-q.answers:
		return l.answered(m, ok)
	case <-ctx.Done():
	}
	ended()
	late := time.NewTimer(lateAnswer)
	defer late.Stop()
	select {
	case m, ok := <-q.answers:
		return l.answered(m, ok)
	case <-late.C:
		return nil, ctx.Err()
	}
}

// place puts a payload into the host's exchange. It takes the payload over, also
// if it fails.
func (l *link) place(ctx context.Context, owner uint32, edge connector.Edge, key string, p *accounts.Payload) (entry uint64, err error) {
	m := &wire.Place{Owner: owner, Size: uint64(len(p.Bytes())), From: edge.From, To: edge.To, Key: key}
	token, q, err := l.note(1, nil)
	if err != nil {
		p.Release()
		return 0, err
	}
	defer l.settle(token)
	m.Token = token
	if err := l.sendPlace(m, p); err != nil {
		p.Release()
		return 0, err
	}
	faultpoint.Hit("node-placed")
	answer, err := l.awaitLate(ctx, q, func() {})
	var failed *wire.Error
	if errors.As(err, &failed) && m.Put != 0 {
		l.returned(m.Put) // it was not placed
	}
	if err != nil && errors.Is(err, ctx.Err()) {
		err = notKnown(err)
	}
	if placed, ok := answer.(*wire.Placed); ok {
		entry = placed.Entry
	}
	return entry, err
}

// notKnown is the end of a context before the host has said whether a value was put.
func notKnown(over error) error {
	return fmt.Errorf("%w: the host has not answered, and whether the value was put is not known: %w", connector.ErrUnavailable, over)
}

// sendPlace tells the host where the payload lies, which is its from then on.
func (l *link) sendPlace(m *wire.Place, p *accounts.Payload) error {
	if err := l.parting.why(); err != nil {
		return err
	}
	if p.Segment() == nil {
		m.Flags, m.Payload = wire.FlagInline, p.Bytes()
		faultpoint.Hit("node-before-place")
		return l.send(m)
	}
	h := &accounts.Hold{Returned: p.Release, Bytes: len(p.Bytes()), At: time.Now()}
	err := l.account.Hold(h, accounts.Location{Seg: p.Segment(), Own: !p.Segment().Lasts()}, func(number, segment uint32) error {
		m.Put, m.Segment, m.Offset, m.Flags = number, segment, p.Offset(), aloneFlag(h)
		faultpoint.Hit("node-before-place")
		return sentAlone(h, l.send(m))
	})
	if errors.Is(err, accounts.ErrOver) {
		return l.parting.why()
	}
	return err
}

// fetch asks the host for a payload of its exchange.
func (l *link) fetch(ctx context.Context, m *wire.Fetch) (*accounts.Payload, error) {
	token, q, err := l.note(1, nil)
	if err != nil {
		return nil, err
	}
	m.Token = token
	if err := l.send(m); err != nil {
		l.settle(token)
		return nil, err
	}
	answer, err := l.awaitLate(ctx, q, func() { l.Queue(&wire.Cancel{Token: token}) })
	answer, err = l.late(token, q, answer, err)
	if got, ok := answer.(arrived); ok {
		return got.payload, nil
	}
	switch {
	case err == nil:
		return nil, fmt.Errorf("%w: %v instead of what was fetched", wire.ErrProtocol, answer.Kind())
	case ctx.Err() != nil && errors.Is(err, wire.CodeNothing):
		return nil, ctx.Err()
	case errors.Is(err, wire.CodeNothing):
		return nil, connector.ErrNotFound
	}
	return nil, err
}

// arrived is a payload of the exchange, on its way to whoever asked for it.
type arrived struct {
	wire.Message
	payload *accounts.Payload
}

// fetched hands a payload to whoever asked for it. One that nobody waits for any
// more goes back.
func (l *link) fetched(m *wire.Fetched) error {
	q, wanted := l.claim(m.Token)
	if !wanted {
		l.Queue(&wire.Finish{Delivery: m.Delivery, Flags: wire.FinishUnread})
		if q != nil {
			q.answers <- failedFirst{m, bus.ErrClosed}
		}
		return nil
	}
	p, err := l.fetchedPayload(m)
	if err != nil {
		l.parting.reading.Done()
		q.answers <- failedFirst{m, err}
		return err
	}
	faultpoint.Hit("node-fetched")
	q.answers <- arrived{m, p} // it has room: the question was open
	return nil
}

// claim takes a question whose payload has come, and counts who reads it. Whoever
// asked waits for what comes then, whatever its context. A node that closes wants
// no payload.
func (l *link) claim(token uint32) (q *question, wanted bool) {
	q = l.asked.settle(token)
	return q, q != nil && l.parting.reads()
}

func (l *link) fetchedPayload(m *wire.Fetched) (*accounts.Payload, error) {
	if m.Flags&wire.FlagInline != 0 {
		return accounts.OnHeap(append([]byte{}, m.Payload...), func() {
			l.QueueLater(&wire.Finish{Delivery: m.Delivery})
			l.parting.reading.Done()
		}), nil
	}
	free := func() {
		l.Queue(&wire.Finish{Delivery: m.Delivery})
		l.parting.reading.Done()
	}
	seg := l.account.Memory(m.Segment)
	if seg == nil {
		return nil, fmt.Errorf("%w: delivery %d lies in segment %d, which is not known", wire.ErrProtocol, m.Delivery, m.Segment)
	}
	p, err := seg.Claimed(m.Offset, m.Size, false, free)
	if err != nil {
		return nil, fmt.Errorf("delivery %d: %w", m.Delivery, err)
	}
	return p, nil
}

// cleanup takes back what an owner has placed and nobody has fetched; with no key, all
// of it, and that is its end.
func (l *link) cleanup(ctx context.Context, owner uint32, key string) error {
	return l.ask(ctx, func(token uint32) wire.Message { return &wire.Cleanup{Token: token, Owner: owner, Key: key} })
}

// gone says why the host is.
func (l *link) gone() error {
	if err := l.parting.lost(); err != nil {
		return err
	}
	return bus.ErrHostGone
}

// closeExchange waits for those who hold payloads of the exchange, and gives the
// memory of this process's own back.
func (l *link) closeExchange(ctx context.Context) error {
	if err := waiting.For(ctx, &l.parting.reading); err != nil {
		return fmt.Errorf("payloads of the exchange are held: %w", err)
	}
	return l.exchange.Close(ctx)
}
