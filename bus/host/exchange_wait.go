package host

import (
	"context"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// exchangeWait is a question about the exchange that waits.
type exchangeWait struct {
	cancel context.CancelCauseFunc
	what   string // the value that it waits for
	since  time.Time
}

// errWithdrawn says that the client canceled its question.
var errWithdrawn = fmt.Errorf("%w: the question was canceled", connector.ErrNotFound)

// askExchange answers a question with the function that find returns. Find waits until its context
// ends; the client may cancel it.
func (s *session) askExchange(token uint32, what string, find func(context.Context) (answer func(), err error)) error {
	ctx, cancel := context.WithCancelCause(s.ctx)
	duplicate, full := s.exchange.addWait(token, &exchangeWait{cancel: cancel, what: what, since: time.Now()})
	switch {
	case duplicate:
		cancel(nil)
		return fmt.Errorf("%w: question %d is open already", wire.ErrProtocol, token)
	case full:
		cancel(nil)
		s.queue(hostnode.Failed(token, fmt.Errorf("%w: %d questions wait for the exchange", connector.ErrFull, maxExchangeWaits)))
		return nil
	}
	s.wg.Go(func() {
		answer, err := find(ctx)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		// First: the client may use the token again once it has the answer.
		s.exchange.removeWait(token)
		cancel(nil)
		if err != nil {
			s.queue(hostnode.Failed(token, err))
			return
		}
		answer()
	})
	return nil
}

// cancelQuestion ends a question that waits.
func (s *session) cancelQuestion(token uint32) {
	if w := s.exchange.findWait(token); w != nil {
		w.cancel(errWithdrawn)
	}
}

// addWait adds a question that waits. It fails if the token is in use, or the client has too many.
func (x *exchangeState) addWait(token uint32, w *exchangeWait) (duplicate, full bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	duplicate, full = x.waits[token] != nil, len(x.waits) >= maxExchangeWaits
	if !duplicate && !full {
		x.waits[token] = w
	}
	return duplicate, full
}

func (x *exchangeState) findWait(token uint32) *exchangeWait {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.waits[token]
}

func (x *exchangeState) removeWait(token uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.waits, token)
}
