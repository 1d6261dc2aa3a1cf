package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore/shelf"
)

// clientShelf is a client's shelf.
type clientShelf struct {
	*ring.Shelf
	seg *segment // that its values lie in

	returns // what the client is to be told of it
}

// returns are puts that are given back, and that the client does not know of. It would be
// woken for each.
type returns struct {
	mu    sync.Mutex
	puts  []uint32
	bytes int64 // of their payloads
	timer *time.Timer
	runs  bool
}

// tellBytes is of how many bytes of payloads a client is told at once that they are needed no
// more: room for more is worth having again while caches know it.
const tellBytes = 64 << 10

// returnSoon tells the client in a while that a payload on its shelf is needed no more; at
// once, if that makes much of the room that it has.
func (s *session) returnSoon(put uint32, size int64) {
	on := s.ex.shelf
	on.mu.Lock()
	defer on.mu.Unlock()
	on.puts = append(on.puts, put)
	on.bytes += size
	switch {
	case len(on.puts) >= tellValues, on.bytes >= tellBytes:
		s.returnNow()
	case on.runs:
	case on.timer == nil:
		on.timer, on.runs = time.AfterFunc(tellEvery, s.returnInTime), true
	default:
		on.timer.Reset(tellEvery)
		on.runs = true
	}
}

func (s *session) returnInTime() {
	on := s.ex.shelf
	on.mu.Lock()
	defer on.mu.Unlock()
	on.runs = false
	s.returnNow()
}

// returnNow, with the lock of the returns held, tells the client of them.
func (s *session) returnNow() {
	on := s.ex.shelf
	select {
	case <-s.srv.done:
	default:
		if len(on.puts) > 0 {
			s.queue(&wire.Returned{Puts: on.puts})
		}
	}
	on.puts, on.bytes = on.puts[:0], 0
}

// lies says where the client's values lie from here on. Status looks at it meanwhile.
func (x *exchanging) lies(on *clientShelf) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.shelf = on
}

// shelf answers shelf: it takes the client's in.
func (s *session) shelf(m *wire.Shelf, fds []int) error {
	defer peer.CloseAll(fds)
	seg := s.account.memory(m.Segment)
	if seg == nil || s.ex.shelf != nil {
		return fmt.Errorf("%w: a shelf for segment %d, which was not offered, or it is the second", wire.ErrProtocol, m.Segment)
	}
	table := s.srv.on.exchange.table
	first := table.NewRange()
	own, err := shelf.Describe(fds[0])
	if err != nil {
		s.queue(failedMessage(m.Token, err)) // it can place all the same
		return nil
	}
	taker, err := shelf.Open(own, first)
	if err != nil {
		return offerError(err)
	}
	seg.retain()
	s.ex.lies(&clientShelf{Shelf: table.Shelf(first, taker), seg: seg})
	s.queue(&wire.Shelved{Token: m.Token, First: first})
	return nil
}

// shelve puts a payload into the exchange that lies on the client's shelf.
func (s *session) shelve(m *wire.Shelve) error {
	edge := connector.Edge{From: m.From, To: m.To}
	on := s.ex.shelf
	err := errors.Join(edge.Check(), connector.CheckKey(m.Key))
	if on == nil || m.Owner == wire.LastingOwner || err != nil {
		return fmt.Errorf("%w: %q of owner %d is nothing for a shelf, or there is none: %w", wire.ErrProtocol, m.Key, m.Owner, err)
	}
	o, err := s.owner(m.Owner)
	if err != nil {
		return fmt.Errorf("%w: %w", wire.ErrProtocol, err) // who shelves has placed before
	}
	p, err := on.seg.claimed(m.Offset, m.Size, func() { s.returnSoon(m.Put, int64(m.Size)) })
	if err != nil {
		return err
	}
	faultpoint.Hit("host-shelve")
	if err := o.PutOn(on.Shelf, m.Entry, m.At, edge, m.Key, keyed{p}); errors.Is(err, ring.ErrShelf) {
		return fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	}
	return nil // or the host closes
}

// taken notes what the client has taken from a shelf.
func (s *session) taken(m *wire.Taken) {
	faultpoint.Hit("host-taken")
	do := s.ex.reader.Took
	switch m.Flags {
	case wire.TakenAll:
		do = s.ex.reader.Over
	case wire.TakenOver:
		do = s.ex.reader.Gave
	}
	for _, entry := range m.Entries {
		do(entry)
	}
}

// show tells the client of the shelf that a payload lies on.
func (s *session) show(p *foreign, on *ring.Shelf) {
	taker, ok := on.Claims().(*shelf.Taker)
	x := s.srv.on.exchange
	if !ok || s.ex.reader.Knows(on) || x.table.Witnesses() >= x.witnesses {
		return
	}
	fd, err := shelf.Describe(taker.FD())
	if err != nil {
		return // it goes on asking
	}
	err = s.account.telling(location{seg: p.seg}, func(segment uint32) {
		if s.ex.reader.Open(on, shelf.NewWitness(fd, on.First())) {
			s.queue(&wire.ShelfAt{Segment: segment, First: on.First()}, fd)
		}
	})
	if err != nil {
		peer.CloseAll([]int{fd})
	}
}

// witnessesShare is one in how many of the descriptors that the host may open are for what
// readers have of shelves. Readers beyond that ask.
const witnessesShare = 8

// lateShelve is how long a value may take to come that its owner says it has told of. It
// lies in the socket of this process: only what is not so takes longer.
const lateShelve = time.Second

// catchUp waits until the table knows what had been put before.
func (x *exchange) catchUp(ctx context.Context, behind []ring.Behind) error {
	for _, b := range behind {
		late, cancel := context.WithTimeout(ctx, lateShelve)
		err := b.Wait(late)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			b.Doubt()
			x.opts.Logger.Warn("a process says that it has put a value that has not come", slog.String("bus", x.opts.Name))
		}
	}
	return nil
}
