package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// question is a call to the host whose answer has not come.
type question struct {
	answers chan wire.Message
	// onAnswer, if not nil, is called on the reader's goroutine with the answer, before later
	// messages are handled.
	onAnswer func(wire.Message) error
	// descriptors: the answer brings descriptors, by link.found.
	descriptors bool
}

// ask sends a question and waits for its answer.
func (l *link) ask(ctx context.Context, ask func(token uint32) wire.Message) error {
	token, q, err := l.newQuestion(1, nil)
	if err != nil {
		return err
	}
	defer l.removeQuestion(token)
	if err := l.send(ask(token)); err != nil {
		return err
	}
	_, err = l.await(ctx, q)
	return err
}

// newQuestion registers a question with space for some answers.
func (l *link) newQuestion(answers int, first func(wire.Message) error) (uint32, *question, error) {
	q := &question{answers: make(chan wire.Message, answers), onAnswer: first}
	token, err := l.addQuestion(q)
	return token, q, err
}

// addQuestion registers a question.
func (l *link) addQuestion(q *question) (token uint32, err error) {
	token = l.tokens.Add(1)
	if !l.questions.add(token, q) {
		return 0, l.state.hostErr()
	}
	return token, nil
}

// removeQuestion unregisters a question. It reports whether the question was open.
func (l *link) removeQuestion(token uint32) bool { return l.questions.remove(token) != nil }

// send queues a message, and reports its loss. The error is ErrHostGone, unless the host is only
// not reading, or this process lacks a resource such as descriptors.
func (l *link) send(m wire.Message, fds ...int) error { return l.sendError(l.sender.Queue(m, fds...)) }

// sendLater is send of a message that may be delayed: see [peer.Sender.QueueLater].
func (l *link) sendLater(m wire.Message) error { return l.sendError(l.sender.QueueLater(m)) }

func (l *link) sendError(err error) error {
	if err == nil || l.sender.Err() == nil && !errors.Is(err, peer.ErrClosed) {
		return err
	}
	return fmt.Errorf("%w: %w", bus.ErrHostGone, err)
}

func (l *link) await(ctx context.Context, q *question) (wire.Message, error) {
	select {
	case m, ok := <-q.answers:
		return l.checkAnswer(m, ok)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// finalAnswer unregisters a question whose answer must not be lost, after a wait that returned
// answer and err. If the question was no longer open, the reader is about to deliver its answer, or
// the host is gone.
func (l *link) finalAnswer(token uint32, q *question, answer wire.Message, err error) (wire.Message, error) {
	if l.removeQuestion(token) || answer != nil {
		return answer, err
	}
	m, ok := <-q.answers
	return l.checkAnswer(m, ok)
}

// checkAnswer turns the value received for a question into an answer or an error.
func (l *link) checkAnswer(m wire.Message, ok bool) (wire.Message, error) {
	if !ok {
		return nil, l.state.hostErr()
	}
	switch m := m.(type) {
	case *wire.Failed:
		return nil, hostnode.Error(m)
	case failedAnswer:
		return nil, m.err
	}
	return m, nil
}

// failedAnswer is an answer that could not be used.
type failedAnswer struct {
	wire.Message
	err error
}

func (l *link) answer(token uint32, m wire.Message) {
	if r, ok := m.(*wire.Reply); ok {
		m = &wire.Reply{Token: r.Token, Flags: r.Flags, Piece: append([]byte(nil), r.Piece...)}
	}
	q := l.questions.find(token, false)
	_, failed := m.(*wire.Failed)
	switch {
	case q == nil: // no caller waits
		return
	case q.onAnswer != nil && !failed:
		if err := q.onAnswer(m); err != nil {
			m = failedAnswer{m, err}
		}
	}
	select {
	case q.answers <- m:
	default: // more pieces than the question has space for
	}
}

// call sends a method call to the host, and joins the pieces of the answer.
func (l *link) call(ctx context.Context, method string, arguments []byte) ([]byte, error) {
	token, q, err := l.newQuestion(maxReplyPieces, nil)
	if err != nil {
		return nil, err
	}
	defer l.removeQuestion(token)
	if err := l.send(&wire.Call{Token: token, Method: method, Arguments: arguments}); err != nil {
		return nil, err
	}
	var all []byte
	for {
		m, err := l.await(ctx, q)
		if err != nil {
			return nil, err
		}
		r, ok := m.(*wire.Reply)
		if !ok {
			return nil, fmt.Errorf("%w: %v instead of a reply", wire.ErrProtocol, m.Kind())
		}
		all = append(all, r.Piece...)
		if r.Flags&wire.ReplyMore == 0 {
			return all, nil
		}
	}
}

// maxReplyPieces bounds the answer to a call, at 60,000 bytes a piece.
const maxReplyPieces = 1024
