package node

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// foundAnswer is an answer with descriptors, which the receiver owns.
type foundAnswer struct {
	*wire.Found
	fds []int
}

// find asks the host for the descriptor of a name. It returns the descriptor and a pidfd of its
// publisher; the caller owns both.
func (l *link) find(ctx context.Context, name lane.Name) (*wire.Found, []int, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, nil, err //nolint:wrapcheck // the context's
	}
	q := &question{answers: make(chan wire.Message, 1), descriptors: true}
	token, err := l.addQuestion(q)
	if err != nil {
		return nil, nil, err
	}
	if err := l.send(&wire.Find{Token: token, Pool: name.Pool, Number: name.Number}); err != nil {
		l.removeQuestion(token)
		return nil, nil, err
	}
	answer, err := l.await(ctx, q)
	if answer, err = l.finalAnswer(token, q, answer, err); err != nil {
		return nil, nil, err
	}
	found, ok := answer.(foundAnswer)
	if !ok {
		return nil, nil, fmt.Errorf("%w: %v instead of a descriptor", wire.ErrProtocol, answer.Kind())
	}
	return found.Found, found.fds, nil
}

// found passes descriptors to the question that asked for them. It owns them, and closes those
// whose question is no longer open.
func (l *link) found(m *wire.Found, fds []int) error {
	q := l.questions.find(m.Token, true)
	if q == nil || !q.descriptors {
		process.CloseAll(fds)
		if q != nil {
			return fmt.Errorf("%w: descriptors were found for question %d, which did not ask for any", wire.ErrProtocol, m.Token)
		}
		return nil
	}
	faultpoint.Hit("node-found")
	q.answers <- foundAnswer{m, fds} // does not block: the channel has space for one answer
	return nil
}
