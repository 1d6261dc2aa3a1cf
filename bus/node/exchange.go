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

// Exchange opens an end of the host's exchange: payloads under keys, for all
// processes that are attached, and the host itself (see [Bus.Exchange]). A payload
// that is put is written once, into memory of this process, and read there by
// whoever gets it, which is one process: this transport is no [connector.Peeker].
//
// When the host is gone, so is what lay there, and operations fail with
// [connector.ErrUnavailable]; with JoinOptions.Rejoin they go on with the next
// host. When a context ends while the host does not answer, whether a value was put is unknown, and
// the error is both the context's and [connector.ErrUnavailable].
//
// A value of up to 32 KiB travels in messages, and the host copies it.
func (n *Node) Exchange() connector.Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.owners++
	return n.openExchange(n.owners)
}

// OpenExchange implements [connector.Exchange]. It does not fail: operations do,
// while there is no host.
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

// nodeExchange is one end of the host's exchange in another process.
type nodeExchange struct {
	node   *Node
	owner  uint32
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	placing lockorder.RWMutex[lockorder.ExchangePlacing] // held for reading while something is placed
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
	var copied []byte // in the message
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
	if errors.Is(err, wire.CodeOverloaded) && len(copied) > 0 { // the host has no room for it: this process may have
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

// closeWait is how long a host may take to take back what a transport has put.
const closeWait = 10 * time.Second

// Close implements [connector.Transport].
func (e *nodeExchange) Close() error {
	over := e.ctx.Err() != nil
	e.cancel()
	e.placing.Lock() // what is on its way is placed first
	defer e.placing.Unlock()
	l, err := e.currentLink()
	if over || err != nil || e.owner == wire.LastingOwner {
		return nil // closed before, or there is nothing of ours
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	if err := l.cleanup(ctx, e.owner, ""); err != nil && !errors.Is(err, bus.ErrHostGone) {
		return e.connectorError(l, err)
	}
	return nil
}

// withClose has a context end with the transport, too.
func (e *nodeExchange) withClose(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(e.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// link finds the host of now.
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

// connectorError says in the connector's words why an operation failed.
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
	if errors.Is(err, connector.ErrClosed) { // the room of a host that is gone
		return fmt.Errorf("%w: %w", connector.ErrUnavailable, l.hostGoneErr())
	}
	return err
}
