package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// exchangeWait is a question about the exchange that waits.
type exchangeWait struct {
	cancel context.CancelCauseFunc
	what   string // it waits for
	room   bool   // which is room
	since  time.Time
}

// errWithdrawn says that the client does not wait any more.
var errWithdrawn = fmt.Errorf("%w: the question was canceled", connector.ErrNotFound)

// askExchange answers a question that waits until it is canceled. What find
// returns gives the answer.
func (s *session) askExchange(token uint32, what string, room bool, find func(context.Context) (answer func(), err error)) error {
	ctx, cancel := context.WithCancelCause(s.ctx)
	s.mu.Lock()
	again, many := s.ex.waits[token] != nil, len(s.ex.waits) >= maxExchangeWaits
	if !again && !many {
		s.ex.waits[token] = &exchangeWait{cancel: cancel, what: what, room: room, since: time.Now()}
	}
	s.mu.Unlock()
	switch {
	case again:
		cancel(nil)
		return fmt.Errorf("%w: question %d is open already", wire.ErrProtocol, token)
	case many:
		cancel(nil)
		s.queue(failedMessage(token, fmt.Errorf("%w: %d questions wait for the exchange", connector.ErrFull, maxExchangeWaits)))
		return nil
	}
	s.wg.Go(func() {
		answer, err := find(ctx)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		// First: the client may use the token again when it has its answer.
		s.mu.Lock()
		delete(s.ex.waits, token)
		s.mu.Unlock()
		cancel(nil)
		if err != nil {
			s.queue(failedMessage(token, err))
			return
		}
		answer()
	})
	return nil
}

// cancelQuestion ends a question that waits.
func (s *session) cancelQuestion(token uint32) {
	s.mu.Lock()
	w, submit := s.ex.waits[token], s.submits[token]
	s.mu.Unlock()
	if w != nil {
		w.cancel(errWithdrawn)
	}
	if submit != nil {
		submit(errWithdrawn)
	}
}

// reserveKeyed answers a reserve for the exchange.
func (s *session) reserveKeyed(m *wire.Reserve) error {
	token, size := m.Token, m.Size
	if most := s.mostBytes(); size > uint64(most) {
		s.queue(failedMessage(token, fmt.Errorf("%w: %d bytes of at most %d", ErrTooLarge, size, most)))
		return nil
	}
	p, err := s.tryRoomKeyed(int(size))
	switch {
	case err == nil:
		return s.grantKeyed(token, p, false)
	case !errors.Is(err, errCanceled):
		s.queue(failedMessage(token, err))
		return nil
	}
	what := fmt.Sprintf("room for %d bytes in the exchange", size)
	return s.askExchange(token, what, true, func(ctx context.Context) (func(), error) {
		p, own, err := s.awaitRoomKeyed(ctx, int(size))
		return func() { _ = s.grantKeyed(token, p, own) }, err // it is not given when the session has ended
	})
}

// grantKeyed grants room that was charged for.
func (s *session) grantKeyed(token uint32, p *foreign, own bool) error {
	free, size := p.free, len(p.data) // of which the client may use less
	p.free = func() {
		free()
		if own {
			s.unmake(size)
		}
		s.discharge(own)
	}
	return s.grant(token, &grant{payload: p, own: own, buf: Buffer{size: len(p.data)}})
}

// tryRoomKeyed finds room in the client's arena, or errCanceled. Like
// awaitRoomKeyed it charges for what it finds.
func (s *session) tryRoomKeyed(size int) (*foreign, error) {
	arena, err := s.sealedArena()
	if err != nil {
		return nil, err
	}
	if s.charge(false) != nil {
		return nil, errCanceled
	}
	room, err := arena.rooms.TryReserve(max(size, 1))
	if err != nil {
		s.uncharge(false)
		return nil, errCanceled
	}
	return arena.payload(room, size), nil
}

// awaitRoomKeyed waits for room in the arena for a moment, then makes a segment
// for the payload alone, or waits for either when the client has too many of
// those.
func (s *session) awaitRoomKeyed(ctx context.Context, size int) (*foreign, bool, error) {
	arena, err := s.sealedArena()
	if err != nil {
		return nil, false, err
	}
	moment, stop := context.WithTimeout(ctx, spillAfter)
	defer stop()
	for until, first := moment.Done(), true; ; first = false {
		if p := s.roomInArena(ctx, arena, size, until); p != nil {
			return p, false, nil
		}
		if !first { // it may be too large for the arena
			select {
			case <-until:
			case <-ctx.Done():
			}
		}
		until = s.whenFreed()
		if s.makes(size) == nil {
			p, err := aloneInSegment(size)
			if err != nil {
				s.unmake(size)
				s.uncharge(true)
			}
			return p, true, err
		}
		if ctx.Err() != nil {
			return nil, false, context.Cause(ctx)
		}
	}
}

// makes charges for a segment that the host makes for a payload of the client's.
func (s *session) makes(size int) error {
	if err := s.charge(true); err != nil {
		return err
	}
	s.mu.Lock()
	fits := s.ex.made+int64(size) <= s.mostBytes()
	if fits {
		s.ex.made += int64(size)
	}
	s.mu.Unlock()
	if !fits {
		s.uncharge(true)
		return connector.ErrFull
	}
	return nil
}

// unmake counts a segment less.
func (s *session) unmake(size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ex.made -= int64(size)
}

// roomInArena waits for room in the arena until a channel is closed, or the
// context ends. It does not wait when that is of no use.
func (s *session) roomInArena(ctx context.Context, arena *clientArena, size int, until <-chan struct{}) *foreign {
	enough, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-until:
			cancel()
		case <-enough.Done():
		}
	}()
	if s.charge(false) != nil {
		return nil
	}
	room, err := arena.rooms.Reserve(max(size, 1), enough.Done())
	if err != nil {
		s.uncharge(false)
		return nil
	}
	return arena.payload(room, size)
}

// whenFreed is closed when a payload of the client's goes.
func (s *session) whenFreed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ex.freed == nil {
		s.ex.freed = make(chan struct{})
	}
	return s.ex.freed
}
