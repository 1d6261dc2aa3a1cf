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

// connectionEnded is called after the client's last message was handled. A process whose connection
// ends is mostly dying: it gets DeathGrace to die, so that the errors of its requests can say so.
func (s *session) connectionEnded(reason error) {
	if errors.Is(reason, io.EOF) {
		s.proc.OnExitWithin(hostnode.DeathGrace, func(died bool) { s.teardown(reason, died) })
		return
	}
	if errors.Is(reason, errBye) {
		s.endRequests(s.causeOf(reason, false)) // no request waits for the client any more
		s.working.Wait()                        // all its earlier messages are done
	}
	s.teardown(reason, s.proc.Exited())
}

// teardown takes back what the client holds, except payloads that it may still be reading. Those stay
// until the process is dead, or until the host closes, since a closing host reuses no memory.
func (s *session) teardown(reason error, died bool) {
	cause := s.causeOf(reason, died)
	holds, _, segments := s.account.Sizes()
	s.srv.log.Info("a process is gone", slog.Int("pid", s.proc.PID()), slog.String("name", s.name), slog.Any("reason", cause),
		slog.Int("payloads", holds), slog.Int("segments", segments))
	s.cancel(cause)
	_ = s.conn.Close()
	s.rejectAll(cause)
	s.working.Wait()
	s.wg.Wait() // from here on no emission or finish runs for the client
	s.srv.services.TensorFigures.Remove(s)
	s.sources.close()
	s.direct.close()
	s.srv.introductions.forget(s)

	// A closing host reuses no memory: what is mapped stays as it is.
	closes := errors.Is(reason, errHostClosing)
	reads := !died && !closes && !s.byeReceived
	had := s.account.Close(reads)
	_ = s.leaveStages() // first, so that no work moves from one of its replicas to another
	for _, rep := range s.replicas.list() {
		rep.Detach(cause)
		if f := s.srv.opts.OnGone; f != nil {
			f(rep.Stage, rep.Number, s.proc.PID(), cause)
		}
	}
	s.reclaim(cause, had)
	if !reads || !had.NeedsDrop {
		s.releaseRest()
		return
	}
	var once sync.Once
	drop := func() { once.Do(s.releaseRest) }
	s.proc.OnExit(drop)
	context.AfterFunc(s.srv.closing, drop)
}

// endRequests ends the client's requests, including those that have not begun.
func (s *session) endRequests(cause error) {
	s.rejectAll(cause)
	for _, src := range s.sources.list() {
		if src.task == nil {
			src.close(cause)
		}
	}
}

// releaseRest has the supervisor release the rest of the account, then drop the session.
func (s *session) releaseRest() {
	s.srv.services.Reclaim(func() (more bool) {
		if s.account.GiveBackSome(accounts.All) {
			return true
		}
		for _, seg := range s.account.Drop() {
			s.srv.retireSegment(seg)
		}
		_ = s.sender.Close()
		if b := s.board.Load(); b != nil {
			b.memory.Close() // a check that is running reads zeros
		}
		_ = s.proc.Close()
		s.srv.removeSession(s)
		return false
	})
}

// causeOf describes the end of the session, for the errors of requests.
func (s *session) causeOf(reason error, died bool) error {
	process := fmt.Sprintf("process %d", s.proc.PID())
	switch {
	case errors.Is(reason, errHostClosing):
		return bus.ErrClosed
	case errors.Is(reason, errBye):
		return fmt.Errorf("%s left", process)
	case errors.Is(reason, errStuck), errors.Is(reason, bus.ErrHandleTimeout):
		return reason // names the process
	case died:
		text := "died"
		if f := s.srv.opts.Autopsy; f != nil {
			if more := f(s.proc.PID()); more != "" {
				text = "died: " + more
			}
		}
		return fmt.Errorf("%s %s", process, text)
	case errors.Is(reason, io.EOF):
		return fmt.Errorf("%s closed its connection, and lives on", process)
	}
	return fmt.Errorf("%s: %w", process, reason)
}

// reclaim releases what the client held besides the work of its stages.
func (s *session) reclaim(cause error, had accounts.CloseResult) {
	for _, h := range had.ToFree {
		h.Free()
	}
	for _, o := range had.Owners { // owners report their values until these are gone
		o.Close()
	}
	for _, src := range s.sources.removeAll() {
		if src.task == nil {
			src.close(cause)
		}
	}
	for _, u := range had.Unfinished {
		if h := u.(*sentDelivery); h.work == nil { //nolint:forcetypeassert // an account has no others
			_ = h.d.Finish(nil) // a result: only the client held it
		} else {
			h.work.ReleaseOrphan(s) // the request has ended, and no other replica has the work
		}
	}
}
