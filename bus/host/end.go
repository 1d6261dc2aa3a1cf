package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
)

// ends is called when no message of the client is handled any more. A process whose connection
// ends is mostly dying: it has a while for that, so that the reason can say so.
func (s *session) ends(reason error) {
	if errors.Is(reason, io.EOF) {
		s.proc.Within(hostnode.DeathGrace, func(died bool) { s.end(reason, died) })
		return
	}
	if errors.Is(reason, errBye) {
		s.abandon(s.causeOf(reason, false)) // none of its requests waits for it any more
		s.working.Wait()                    // all that it said before is done
	}
	s.end(reason, s.proc.Exited())
}

// end takes back what the client had, but for what it may be reading: that stays until it is
// dead, or the host closes and reuses no memory.
func (s *session) end(reason error, died bool) {
	cause := s.causeOf(reason, died)
	holds, _, segments := s.account.Sizes()
	s.srv.log.Info("a process is gone", slog.Int("pid", s.proc.PID()), slog.String("name", s.name), slog.Any("reason", cause),
		slog.Int("payloads", holds), slog.Int("segments", segments))
	s.cancel(cause)
	_ = s.conn.Close()
	s.turnAwayAll(cause)
	s.working.Wait()
	s.wg.Wait() // nothing is emitted or finished for the client from here on
	s.srv.services.TensorFigures.Remove(s)
	s.sources.close()
	s.direct.close()
	s.srv.introductions.forget(s)

	// A host that closes reuses no memory: what is mapped stays as it is.
	closes := errors.Is(reason, errHostClosing)
	reads := !died && !closes && !s.byeSaid
	had := s.account.Close(reads)
	_ = s.leave() // first, so that nothing moves from one of its replicas to another
	for _, rep := range s.replicas.list() {
		rep.Detach(cause)
		if f := s.srv.opts.OnGone; f != nil {
			f(rep.Stage, rep.Number, s.proc.PID(), cause)
		}
	}
	s.takeBack(cause, had)
	if !reads || !had.Stays {
		s.drop()
		return
	}
	var once sync.Once
	drop := func() { once.Do(s.drop) }
	s.proc.OnExit(drop)
	context.AfterFunc(s.srv.closing, drop)
}

// abandon ends the client's requests, those too that have not begun.
func (s *session) abandon(cause error) {
	s.turnAwayAll(cause)
	for _, src := range s.sources.list() {
		if src.task == nil {
			src.close(cause)
		}
	}
}

// drop has the supervisor take back the rest.
func (s *session) drop() {
	s.srv.services.Reclaim(func() (more bool) {
		if s.account.GiveBackSome(accounts.All) {
			return true
		}
		for _, seg := range s.account.Drop() {
			s.srv.retireSegment(seg)
		}
		_ = s.sender.Close()
		if b := s.board.Load(); b != nil {
			b.memory.Close() // a look that is under way reads zeros
		}
		_ = s.proc.Close()
		s.srv.forget(s)
		return false
	})
}

// causeOf says what happened, for the errors of requests.
func (s *session) causeOf(reason error, died bool) error {
	who := fmt.Sprintf("process %d", s.proc.PID())
	switch {
	case errors.Is(reason, errHostClosing):
		return bus.ErrClosed
	case errors.Is(reason, errBye):
		return fmt.Errorf("%s left", who)
	case errors.Is(reason, errStuck), errors.Is(reason, bus.ErrHandleTimeout):
		return reason // which names it
	case died:
		text := "died"
		if f := s.srv.opts.Autopsy; f != nil {
			if more := f(s.proc.PID()); more != "" {
				text = "died: " + more
			}
		}
		return fmt.Errorf("%s %s", who, text)
	case errors.Is(reason, io.EOF):
		return fmt.Errorf("%s closed its connection, and lives on", who)
	}
	return fmt.Errorf("%s: %w", who, reason)
}

// takeBack gives back what the client had besides the work of its stages.
func (s *session) takeBack(cause error, had accounts.Remains) {
	for _, h := range had.Back {
		h.Free()
	}
	for _, o := range had.Owners { // which report what lies there until it is gone
		o.Close()
	}
	for _, src := range s.sources.take() {
		if src.task == nil {
			src.close(cause)
		}
	}
	for _, u := range had.Unfinished {
		if h := u.(*handed); h.work == nil { //nolint:forcetypeassert // an account has no others
			_ = h.d.Finish(nil) // a result, in the client's hands alone
		} else {
			h.work.ReleaseOrphan(s) // of a request that is over, and that is at no other replica
		}
	}
}
