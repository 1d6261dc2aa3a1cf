package exchange

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// maxLasting bounds the values that outlive their processes, over all processes.
const maxLasting = 4096

// Options are the settings of an exchange.
type Options struct {
	Store       shmstore.Options // of the values that this process puts
	InlineBytes int              // values of up to so many are on the heap
	TTL         time.Duration    // how long a value waits to be fetched; 0: for ever
	Logger      *slog.Logger
}

// Exchange is the host's table of values under keys, including those of clients.
type Exchange struct {
	opts  Options
	table *ring.Table
	store ValueStore // of the values that this process puts
	// inMessages are the bytes of store taken by clients' values from messages, maxInMessages is their bound.
	inMessages    atomic.Int64
	maxInMessages int64
	account       accounts.Account // of the values that this process has placed and fetched
	// lastingAccount has the values that outlive their processes, see connector.Config; their owner is lasting.
	lastingAccount accounts.Account
	lasting        *ring.Owner

	mu         lockorder.Mutex[lockorder.Exchange]
	endpoints  map[*endpoint]struct{}
	lastNumber uint32 // of an endpoint's owner
	closed     bool
}

// messagesShare is the divisor of the host's memory for values that gives the share for values from messages.
// Clients can use memory of their own instead; the values of the host's process cannot lie elsewhere.
const messagesShare = 2

// New returns an empty exchange.
func New(opts Options) *Exchange {
	x := &Exchange{
		opts: opts, table: ring.NewTable(opts.TTL, opts.Logger),
		store: ValueStore{opts: opts.Store}, maxInMessages: opts.Store.WithDefaults().ArenaBytes / messagesShare,
		endpoints: make(map[*endpoint]struct{}),
	}
	x.account.Open(nil) // this process needs no announcements of memory
	x.lastingAccount.Open(nil)
	x.lasting = x.table.Owner("no process")
	_, _ = owner(&x.lastingAccount, wire.LastingOwner, 1, func() *ring.Owner { return x.lasting })
	return x
}

// Owner finds an owner of values of a process by the account of that process, or creates it with a
// label for reports. The error is connector.ErrFull if there are most owners already.
// [wire.LastingOwner] owns the values that outlive their processes.
func (x *Exchange) Owner(of *accounts.Account, number uint32, most int, label string) (*ring.Owner, error) {
	if number != wire.LastingOwner {
		return owner(of, number, most, func() *ring.Owner { return x.table.Owner(label) })
	}
	if x.lasting.Len() >= maxLasting {
		return nil, fmt.Errorf("%w: %d payloads that outlive their processes lie in the exchange, and no more may", connector.ErrFull, maxLasting)
	}
	return x.lasting, nil
}

// Cleanup takes back the values of an owner under a key that no process has fetched. With an empty
// key it takes back all of them, and the owner ends. It returns how many values it took back.
func (x *Exchange) Cleanup(of *accounts.Account, number uint32, key string) int {
	o := cleanupOwner(of, number, key == "")
	if key != "" && number == wire.LastingOwner { // never all: other processes have put them
		o = x.lasting
	}
	switch {
	case o == nil:
		return 0
	case key == "":
		return o.Close()
	}
	return o.Cleanup(key)
}

// Get gets the value of an entry under a key; 0: the oldest. The error is connector.ErrNotFound if
// there is none.
func (x *Exchange) Get(edge connector.Edge, key string, entry uint64) (*Fetched, error) {
	got, err := x.table.Get(edge, key, entry)
	if err != nil {
		return nil, err
	}
	return newFetched(got), nil
}

// Await is Get, but waits for a value until ctx ends.
func (x *Exchange) Await(ctx context.Context, edge connector.Edge, key string, entry uint64) (*Fetched, error) {
	got, err := x.table.Await(ctx, nil, edge, key, entry)
	if err != nil {
		return nil, err
	}
	return newFetched(got), nil
}

// Copied copies the value of a message into the store of this process's values. It does not
// block: if it fails with [connector.ErrFull], the client can still put the value into memory
// of its own. gone is called when the payload is freed.
func (x *Exchange) Copied(data []byte, gone func()) (p *accounts.Payload, err error) {
	n := x.store.spaceBytes(len(data), x.opts.InlineBytes)
	if x.inMessages.Add(n) > x.maxInMessages {
		x.inMessages.Add(-n)
		return nil, fmt.Errorf("%w: values of messages may take %d bytes of the host's memory, and the %d that one of %d takes are too many", connector.ErrFull, x.maxInMessages, n, len(data))
	}
	err = x.store.Put(canceled, len(data), x.opts.InlineBytes, func(dst []byte) error {
		copy(dst, data)
		return nil
	}, func(made *accounts.Payload) error {
		p = made
		return nil
	})
	if err != nil {
		x.inMessages.Add(-n)
		return nil, fmt.Errorf("%w: the host has no memory for a value of %d bytes: %w", connector.ErrFull, len(data), err)
	}
	p.AfterFree(func() {
		x.inMessages.Add(-n)
		gone()
	})
	return p, nil
}

// canceled is the context of calls that must not block.
var canceled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Close ends the exchange; no client is left. The error reports payloads that this process
// has not released.
func (x *Exchange) Close() error {
	x.mu.Lock()
	x.closed = true
	ends := x.endpoints
	x.endpoints = make(map[*endpoint]struct{})
	x.mu.Unlock()
	for e := range ends {
		_ = e.Close()
	}
	x.lasting.Close()
	x.table.Stop()
	if err := x.store.Close(context.Background()); err != nil {
		return fmt.Errorf("exchange: payloads were not released: %w", err)
	}
	return nil
}

// Open opens an endpoint of the exchange for this process. The values of a lasting endpoint
// outlive it.
func (x *Exchange) Open(lasting bool) connector.Transport { return x.openEndpoint(lasting) }

func (x *Exchange) openEndpoint(lasting bool) *endpoint {
	e := &endpoint{exchange: x, owner: x.lasting, number: wire.LastingOwner, done: make(chan struct{})}
	x.mu.Lock()
	final := x.closed
	if !lasting {
		for x.lastNumber++; x.lastNumber == wire.LastingOwner || x.account.CleanupOwner(x.lastNumber, false) != nil; x.lastNumber++ { // the numbers have wrapped
		}
		e.number = x.lastNumber
		e.owner, _ = owner(&x.account, e.number, unbounded, func() *ring.Owner { return x.table.Owner("the host") })
	}
	x.endpoints[e] = struct{}{}
	x.mu.Unlock()
	if final {
		_ = e.Close()
	}
	return e
}

// endpoint is one transport of the exchange in the host's process.
type endpoint struct {
	exchange *Exchange
	owner    *ring.Owner
	number   uint32 // of the owner; wire.LastingOwner is shared by all processes
	once     sync.Once
	done     chan struct{}
}

// Put implements [connector.Transport].
func (e *endpoint) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	if e.closed() {
		return nil, connector.ErrClosed
	}
	var number uint64
	err := e.exchange.store.Put(ctx, size, e.exchange.opts.InlineBytes, fill, func(p *accounts.Payload) (err error) {
		number, err = e.owner.Put(edge, key, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ring.Metadata(number), nil
}

// Get implements [connector.Transport].
func (e *endpoint) Get(_ context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return e.receive(meta, func(number uint64) (ring.Taken, error) { return e.exchange.table.Get(edge, key, number) })
}

// Await implements [connector.Transport].
func (e *endpoint) Await(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return e.receive(meta, func(number uint64) (ring.Taken, error) {
		return e.exchange.table.Await(ctx, e.done, edge, key, number)
	})
}

// Cleanup implements [connector.Transport].
func (e *endpoint) Cleanup(_ context.Context, key string) error {
	if e.closed() {
		return connector.ErrClosed
	}
	e.owner.Cleanup(key)
	return nil
}

// Close implements [connector.Transport].
func (e *endpoint) Close() error {
	e.once.Do(func() {
		close(e.done)
		if e.number != wire.LastingOwner {
			cleanupOwner(&e.exchange.account, e.number, true).Close()
		}
		e.exchange.remove(e)
	})
	return nil
}

// remove removes a closed endpoint.
func (x *Exchange) remove(e *endpoint) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.endpoints, e)
}

func (e *endpoint) closed() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// payload is a value that the host's process has fetched.
type payload struct {
	ring.Taken
	account *accounts.Account
	number  uint32
}

func (e *endpoint) receive(meta connector.Metadata, get func(number uint64) (ring.Taken, error)) (connector.Payload, error) {
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
	p := &payload{Taken: got, account: &e.exchange.account}
	err = p.account.AddAndSend(&newFetched(got).Hold, accounts.Location{}, func(number, _ uint32) error {
		p.number = number
		return nil
	})
	return p, err
}

// Release implements [connector.Payload].
func (p *payload) Release() {
	p.account.GiveBack(p.number, func() {})
}

// Values lists the values that this process has placed in the exchange, and has fetched from it.
func (x *Exchange) Values() []Value { return Values(&x.account) }

// Lasting lists the values that outlive their processes.
func (x *Exchange) Lasting() []Value { return Values(&x.lastingAccount) }

// Stats are the figures of the table.
func (x *Exchange) Stats() ring.Stats { return x.table.Stats() }
