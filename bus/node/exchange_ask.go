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

// answerGrace is how long the host may take to answer a question whose context has ended. The host
// answers at once unless it is stopped, and only the answer says whether a payload was put or
// fetched.
const answerGrace = time.Second

// awaitWithGrace is await, with answerGrace more after the context has ended; ended is called
// before that.
func (l *link) awaitWithGrace(ctx context.Context, q *question, ended func()) (wire.Message, error) {
	select {
	case m, ok := <-q.answers:
		return l.checkAnswer(m, ok)
	case <-ctx.Done():
	}
	ended()
	late := time.NewTimer(answerGrace)
	defer late.Stop()
	select {
	case m, ok := <-q.answers:
		return l.checkAnswer(m, ok)
	case <-late.C:
		return nil, ctx.Err()
	}
}

// place puts a payload into the host's exchange. It takes ownership of the payload, on errors too.
func (l *link) place(ctx context.Context, owner uint32, edge connector.Edge, key string, p *accounts.Payload) (entry uint64, err error) {
	m := &wire.Place{Owner: owner, Size: uint64(len(p.Bytes())), From: edge.From, To: edge.To, Key: key}
	token, q, err := l.newQuestion(1, nil)
	if err != nil {
		p.Release()
		return 0, err
	}
	defer l.removeQuestion(token)
	m.Token = token
	if err := l.sendPlace(m, p); err != nil {
		p.Release()
		return 0, err
	}
	faultpoint.Hit("node-placed")
	answer, err := l.awaitWithGrace(ctx, q, func() {})
	var failed *wire.Error
	if errors.As(err, &failed) && m.Put != 0 {
		l.returned(m.Put) // the host has not taken it
	}
	if err != nil && errors.Is(err, ctx.Err()) {
		err = putUnknownErr(err)
	}
	if placed, ok := answer.(*wire.Placed); ok {
		entry = placed.Entry
	}
	return entry, err
}

// putUnknownErr is the error of a put whose context has ended before the host has answered.
func putUnknownErr(over error) error {
	return fmt.Errorf("%w: the host has not answered, and whether the value was put is not known: %w", connector.ErrUnavailable, over)
}

// sendPlace sends Place. On success the account owns the payload.
func (l *link) sendPlace(m *wire.Place, p *accounts.Payload) error {
	if err := l.state.err(); err != nil {
		return err
	}
	if p.Segment() == nil {
		m.Flags, m.Payload = wire.FlagInline, p.Bytes()
		faultpoint.Hit("node-before-place")
		return l.send(m)
	}
	h := &accounts.Hold{Returned: p.Release, Bytes: len(p.Bytes()), At: time.Now()}
	err := l.account.AddAndSend(h, accounts.Location{Seg: p.Segment(), Alone: !p.Segment().Lasts()}, func(number, segment uint32) error {
		m.Put, m.Segment, m.Offset, m.Flags = number, segment, p.Offset(), aloneFlag(h)
		faultpoint.Hit("node-before-place")
		return forgetAlone(h, l.send(m))
	})
	if errors.Is(err, accounts.ErrClosed) {
		return l.state.err()
	}
	return err
}

// fetch asks the host for a payload of its exchange.
func (l *link) fetch(ctx context.Context, m *wire.Fetch) (*accounts.Payload, error) {
	token, q, err := l.newQuestion(1, nil)
	if err != nil {
		return nil, err
	}
	m.Token = token
	if err := l.send(m); err != nil {
		l.removeQuestion(token)
		return nil, err
	}
	answer, err := l.awaitWithGrace(ctx, q, func() { l.Queue(&wire.Cancel{Token: token}) })
	answer, err = l.finalAnswer(token, q, answer, err)
	if got, ok := answer.(fetchedAnswer); ok {
		return got.payload, nil
	}
	switch {
	case err == nil:
		return nil, fmt.Errorf("%w: %v instead of a payload", wire.ErrProtocol, answer.Kind())
	case ctx.Err() != nil && errors.Is(err, wire.CodeNothing):
		return nil, ctx.Err()
	case errors.Is(err, wire.CodeNothing):
		return nil, connector.ErrNotFound
	}
	return nil, err
}

// fetchedAnswer is an answer with a payload of the exchange.
type fetchedAnswer struct {
	wire.Message
	payload *accounts.Payload
}

// fetched passes a payload to the question that asked for it. A payload whose question is no longer
// open goes back to the exchange unread.
func (l *link) fetched(m *wire.Fetched) error {
	q, wanted := l.claimFetched(m.Token)
	if !wanted {
		l.Queue(&wire.Finish{Delivery: m.Delivery, Flags: wire.FinishUnread})
		if q != nil {
			q.answers <- failedAnswer{m, bus.ErrClosed}
		}
		return nil
	}
	p, err := l.payloadOf(m)
	if err != nil {
		l.state.readers.Done()
		q.answers <- failedAnswer{m, err}
		return err
	}
	faultpoint.Hit("node-fetched")
	q.answers <- fetchedAnswer{m, p} // does not block: the channel has space for one answer
	return nil
}

// claimFetched closes a question whose payload has come, and counts its reader. From then on fetch
// waits for the answer, even if its context has ended. A link that closes accepts no payload.
func (l *link) claimFetched(token uint32) (q *question, wanted bool) {
	q = l.questions.remove(token)
	return q, q != nil && l.state.addReader()
}

func (l *link) payloadOf(m *wire.Fetched) (*accounts.Payload, error) {
	if m.Flags&wire.FlagInline != 0 {
		return accounts.OnHeap(append([]byte{}, m.Payload...), func() {
			l.QueueLater(&wire.Finish{Delivery: m.Delivery})
			l.state.readers.Done()
		}), nil
	}
	free := func() {
		l.Queue(&wire.Finish{Delivery: m.Delivery})
		l.state.readers.Done()
	}
	seg := l.account.PeerSegment(m.Segment)
	if seg == nil {
		return nil, fmt.Errorf("%w: delivery %d lies in segment %d, which is not known", wire.ErrProtocol, m.Delivery, m.Segment)
	}
	p, err := seg.CheckedPayload(m.Offset, m.Size, false, free)
	if err != nil {
		return nil, fmt.Errorf("delivery %d: %w", m.Delivery, err)
	}
	return p, nil
}

// cleanup removes the payloads that an owner has placed under a key and no process has fetched.
// With an empty key it removes all payloads of the owner, and the owner itself.
func (l *link) cleanup(ctx context.Context, owner uint32, key string) error {
	return l.ask(ctx, func(token uint32) wire.Message { return &wire.Cleanup{Token: token, Owner: owner, Key: key} })
}

// hostGoneErr is why the host is gone, or else bus.ErrHostGone.
func (l *link) hostGoneErr() error {
	if err := l.state.hostErr(); err != nil {
		return err
	}
	return bus.ErrHostGone
}

// closeExchange waits until all fetched payloads are released, and releases the memory of this
// process's own payloads.
func (l *link) closeExchange(ctx context.Context) error {
	if err := waiting.For(ctx, &l.state.readers); err != nil {
		return fmt.Errorf("payloads of the exchange are held: %w", err)
	}
	return l.exchange.Close(ctx)
}
