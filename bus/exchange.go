package bus

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// DefaultExchangeTTL is how long a payload may lie in the exchange until somebody
// comes for it.
const DefaultExchangeTTL = 10 * time.Minute

// exchange is the host's table of payloads under keys, those of clients among
// them.
type exchange struct {
	opts  Options // the bus's
	table *ring.Table
	room  exchangeRoom // of what this process puts
	// inMessages are the bytes of room that clients' values of messages take there, most is their bound.
	inMessages atomic.Int64
	most       int64
	account    ledger.Account // what this process has placed, and has got
	// nobody has what outlives its processes, see connector.Config, by one owner, lasting.
	nobody  ledger.Account
	lasting *ring.Owner

	mu     sync.Mutex
	ends   map[*hostExchange]struct{}
	opened uint32 // ends so far
	closed bool
}

// messagesShare is one in how many bytes of the host's memory for values may be taken by those of
// messages. Clients can fill memory of their own instead; what the host's process puts cannot lie elsewhere.
const messagesShare = 2

func newExchange(opts Options) *exchange {
	x := &exchange{
		opts: opts, table: ring.NewTable(max(opts.ExchangeTTL, 0), opts.Logger.With(slog.String("bus", opts.Name))),
		room: exchangeRoom{opts: opts.ExchangeStore}, most: opts.ExchangeStore.WithDefaults().ArenaBytes / messagesShare,
		ends: make(map[*hostExchange]struct{}),
	}
	x.account.Open(nil) // which tells this process of no memory
	x.nobody.Open(nil)
	x.lasting = x.table.Owner("nobody in particular")
	_, _ = owner(&x.nobody, wire.LastingOwner, 1, func() *ring.Owner { return x.lasting })
	return x
}

// lastingOwner is the owner of what outlives its processes, if it may have more.
func (x *exchange) lastingOwner() (*ring.Owner, error) {
	if x.lasting.Len() >= maxLasting {
		return nil, fmt.Errorf("%w: %d payloads that outlive their processes lie in the exchange, and no more may", connector.ErrFull, maxLasting)
	}
	return x.lasting, nil
}

// copied copies the value of a message to where this process's own values lie. It does not
// wait: where it fails with [connector.ErrFull], the client can still put the value into memory
// of its own.
func (x *exchange) copied(data []byte, gone func()) (p *ledger.Payload, err error) {
	n := x.room.takes(len(data), x.opts.InlineBytes)
	if x.inMessages.Add(n) > x.most {
		x.inMessages.Add(-n)
		return nil, fmt.Errorf("%w: values of messages may take %d bytes of the host's memory, and the %d that one of %d takes are too many", connector.ErrFull, x.most, n, len(data))
	}
	err = x.room.put(unwaited, len(data), x.opts.InlineBytes, func(dst []byte) error {
		copy(dst, data)
		return nil
	}, func(made *ledger.Payload) error {
		p = made
		return nil
	})
	if err != nil {
		x.inMessages.Add(-n)
		return nil, fmt.Errorf("%w: the host has no memory for a value of %d bytes: %w", connector.ErrFull, len(data), err)
	}
	p.After(func() {
		x.inMessages.Add(-n)
		gone()
	})
	return p, nil
}

// unwaited is the context of what does not wait.
var unwaited = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// close ends the exchange, once no client is left. It reports what this process
// has not released.
func (x *exchange) close() error {
	x.mu.Lock()
	x.closed = true
	ends := x.ends
	x.ends = make(map[*hostExchange]struct{})
	x.mu.Unlock()
	for e := range ends {
		_ = e.Close()
	}
	x.lasting.Close()
	x.table.Stop()
	if err := x.room.close(context.Background()); err != nil {
		return fmt.Errorf("%w: exchange: payloads were not released: %w", ErrNotClean, err)
	}
	return nil
}

// Exchange opens an end of the exchange for the process that hosts the bus:
// payloads under keys, for it and for the processes that are attached (see
// [Node.Exchange]). What it puts lies in memory of its own, beside the bus's
// store: see Options.ExchangeStore.
func (b *Bus) Exchange() connector.Transport { return b.openExchange(false) }

// OpenExchange implements [connector.Exchange]. It does not fail.
func (b *Bus) OpenExchange(lasting bool) (connector.Transport, error) {
	return b.openExchange(lasting), nil
}

func (b *Bus) openExchange(lasting bool) *hostExchange {
	x := b.exchange
	e := &hostExchange{exchange: x, owner: x.lasting, number: wire.LastingOwner, done: make(chan struct{})}
	x.mu.Lock()
	over := x.closed
	if !lasting {
		for x.opened++; x.opened == wire.LastingOwner || x.account.Cleans(x.opened, false) != nil; x.opened++ { // the numbers came round
		}
		e.number = x.opened
		e.owner, _ = owner(&x.account, e.number, unbounded, func() *ring.Owner { return x.table.Owner("the host") })
	}
	x.ends[e] = struct{}{}
	x.mu.Unlock()
	if over {
		_ = e.Close()
	}
	return e
}

// hostExchange is one end of the exchange in the host's process.
type hostExchange struct {
	exchange *exchange
	owner    *ring.Owner
	number   uint32 // of the owner; wire.LastingOwner is shared by all processes
	once     sync.Once
	done     chan struct{}
}

// Put implements [connector.Transport].
func (e *hostExchange) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	if e.closed() {
		return nil, connector.ErrClosed
	}
	var number uint64
	err := e.exchange.room.put(ctx, size, e.exchange.opts.InlineBytes, fill, func(p *ledger.Payload) (err error) {
		number, err = e.owner.Put(edge, key, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ring.Metadata(number), nil
}

// Get implements [connector.Transport].
func (e *hostExchange) Get(_ context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return e.take(meta, func(number uint64) (ring.Taken, error) { return e.exchange.table.Get(edge, key, number) })
}

// Await implements [connector.Transport].
func (e *hostExchange) Await(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return e.take(meta, func(number uint64) (ring.Taken, error) {
		return e.exchange.table.Await(ctx, e.done, edge, key, number)
	})
}

// Cleanup implements [connector.Transport].
func (e *hostExchange) Cleanup(_ context.Context, key string) error {
	if e.closed() {
		return connector.ErrClosed
	}
	e.owner.Cleanup(key)
	return nil
}

// Close implements [connector.Transport].
func (e *hostExchange) Close() error {
	e.once.Do(func() {
		close(e.done)
		if e.number != wire.LastingOwner {
			cleans(&e.exchange.account, e.number, true).Close()
		}
		e.exchange.mu.Lock()
		defer e.exchange.mu.Unlock()
		delete(e.exchange.ends, e)
	})
	return nil
}

func (e *hostExchange) closed() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// hostPayload is a payload that the host's process has got.
type hostPayload struct {
	ring.Taken
	account *ledger.Account
	number  uint32
}

func (e *hostExchange) take(meta connector.Metadata, get func(number uint64) (ring.Taken, error)) (connector.Payload, error) {
	if e.closed() {
		return nil, connector.ErrClosed
	}
	number, err := ring.Number(meta)
	if err != nil {
		return nil, err
	}
	got, err := get(number)
	if err != nil {
		return nil, err
	}
	p := &hostPayload{Taken: got, account: &e.exchange.account}
	err = p.account.Hold(&newFetched(got).hold, ledger.Location{}, func(number, _ uint32) error {
		p.number = number
		return nil
	})
	return p, err
}

// Release implements [connector.Payload].
func (p *hostPayload) Release() {
	p.account.GiveBack(p.number, func() {})
}

// holdings lists what the host's process has in the exchange, and has got from it, and
// what is nobody's there.
func (x *exchange) holdings() []Holding {
	all := Holding{PID: os.Getpid(), Name: "the host"}.values(&x.account, "placed")
	return append(all, Holding{Name: "nobody"}.values(&x.nobody, "lasting")...)
}

// ExchangeStats are the figures of an exchange.
type ExchangeStats struct {
	Entries int   `json:"entries"` // payloads that nobody has fetched yet
	Bytes   int64 `json:"bytes"`   // of those
	Swept   int64 `json:"swept"`   // payloads that nobody came for
}

func (x *exchange) stats() ExchangeStats {
	if x == nil { // a node's
		return ExchangeStats{}
	}
	return ExchangeStats(x.table.Stats())
}
