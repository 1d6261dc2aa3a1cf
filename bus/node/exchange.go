package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// Exchange opens an end of the host's exchange: payloads under keys, for all attached processes and
// the host (see [bus.Bus.Exchange]). A payload that is put is written once, into memory of this
// process, and read there by the one process that gets it: this transport is no [connector.Peeker].
// A payload of up to 32 KiB travels in messages instead, and the host copies it.
//
// When the host is gone, its payloads are lost, and operations fail with
// [connector.ErrUnavailable]. With JoinOptions.Rejoin operations work again at the next host. When
// a context ends before the host has answered a put, it is unknown whether the payload was put; the
// error wraps the context's error and [connector.ErrUnavailable].
func (n *Node) Exchange() connector.Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.owners++
	return n.openExchange(n.owners)
}

// OpenExchange implements [connector.Exchange]. It does not fail; operations fail while there is no
// host.
func (n *Node) OpenExchange(lasting bool) (connector.Transport, error) {
	if lasting {
		return n.openExchange(wire.LastingOwner), nil
	}
	return n.Exchange(), nil
}

func (n *Node) openExchange(owner uint32) *nodeExchange {
	e := &nodeExchange{node: n, owner: owner}
	e.ctx, e.cancel = context.WithCancel(n.ctx)
	return e
}

// nodeExchange is one end of the host's exchange, in a node.
type nodeExchange struct {
	node   *Node
	owner  uint32
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	placing lockorder.RWMutex[lockorder.ExchangePlacing] // held for reading while a payload is placed
}

// Put implements [connector.Transport].
func (e *nodeExchange) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	l, err := e.link()
	if err != nil {
		return nil, err
	}
	ctx, stop := e.withClose(ctx)
	defer stop()
	var number uint64
	var copied []byte // the payload of an inline message
	place := func(p *accounts.Payload) (err error) {
		e.placing.RLock()
		defer e.placing.RUnlock()
		if e.ctx.Err() != nil {
			p.Release()
			return connector.ErrClosed
		}
		if p.Segment() == nil {
			copied = p.Bytes()
		}
		number, err = l.place(ctx, e.owner, edge, key, p)
		return err
	}
	err = l.exchange.Put(ctx, size, wire.MaxInline, fill, place)
	if errors.Is(err, wire.CodeOverloaded) && len(copied) > 0 { // the host has no space for an inline payload: use memory of this process
		err = l.exchange.Put(ctx, size, 0, func(dst []byte) error {
			copy(dst, copied)
			return nil
		}, place)
	}
	if err != nil {
		return nil, e.connectorError(l, err)
	}
	return ring.Metadata(number), nil
}

// Get implements [connector.Transport].
func (e *nodeExchange) Get(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return e.fetch(ctx, meta, &wire.Fetch{From: edge.From, To: edge.To, Key: key})
}

// Await implements [connector.Transport].
func (e *nodeExchange) Await(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return e.fetch(ctx, meta, &wire.Fetch{Flags: wire.FetchWait, From: edge.From, To: edge.To, Key: key})
}

func (e *nodeExchange) fetch(ctx context.Context, meta connector.Metadata, m *wire.Fetch) (connector.Payload, error) {
	l, err := e.link()
	if err != nil {
		return nil, err
	}
	if m.Entry, err = ring.Number(meta); err != nil {
		return nil, err
	}
	ctx, stop := e.withClose(ctx)
	defer stop()
	p, err := l.fetch(ctx, m)
	if err != nil {
		return nil, e.connectorError(l, err)
	}
	return p, nil
}

// Cleanup implements [connector.Transport].
func (e *nodeExchange) Cleanup(ctx context.Context, key string) error {
	l, err := e.link()
	if err != nil {
		return err
	}
	ctx, stop := e.withClose(ctx)
	defer stop()
	if err := l.cleanup(ctx, e.owner, key); err != nil {
		return e.connectorError(l, err)
	}
	return nil
}

// closeWait is how long Close waits for the host to remove the payloads of the end.
const closeWait = 10 * time.Second

// Close implements [connector.Transport].
func (e *nodeExchange) Close() error {
	over := e.ctx.Err() != nil
	e.cancel()
	e.placing.Lock() // waits for the payloads that are being placed
	defer e.placing.Unlock()
	l, err := e.currentLink()
	if over || err != nil || e.owner == wire.LastingOwner {
		return nil // closed before, or the end owns no payload
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	if err := l.cleanup(ctx, e.owner, ""); err != nil && !errors.Is(err, bus.ErrHostGone) {
		return e.connectorError(l, err)
	}
	return nil
}

// withClose returns a context that also ends when the transport is closed.
func (e *nodeExchange) withClose(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(e.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// link is the link to the current host, for operations of an open transport.
func (e *nodeExchange) link() (*link, error) {
	if e.ctx.Err() != nil {
		return nil, connector.ErrClosed
	}
	return e.currentLink()
}

func (e *nodeExchange) currentLink() (*link, error) {
	l, err := e.node.currentLink()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", connector.ErrUnavailable, err)
	}
	return l, nil
}

// connectorError maps the error of an operation to the errors of package connector.
func (e *nodeExchange) connectorError(l *link, err error) error {
	if e.ctx.Err() != nil {
		return connector.ErrClosed
	}
	for _, c := range []struct{ of, is error }{
		{bus.ErrHostGone, connector.ErrUnavailable},
		{wire.CodeClosing, connector.ErrUnavailable},
		{wire.CodeMemory, connector.ErrUnavailable},
		{wire.CodeTooLarge, connector.ErrTooLarge},
		{wire.CodeOverloaded, connector.ErrFull},
		{wire.CodeInvalid, connector.ErrKey},
	} {
		if errors.Is(err, c.of) && !errors.Is(err, c.is) {
			return fmt.Errorf("%w: %w", c.is, err)
		}
	}
	if errors.Is(err, connector.ErrClosed) { // the link's own memory is closed
		return fmt.Errorf("%w: %w", connector.ErrUnavailable, l.hostGoneErr())
	}
	return err
}
